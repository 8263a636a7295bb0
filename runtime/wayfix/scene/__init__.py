"""A scene on disk: manifest, BEV pyramid, heights, points and landmarks; and how sources become one."""
