"""A scene as one HTML page to look at: photo, heights, landmarks and footways, without a server or the internet."""
