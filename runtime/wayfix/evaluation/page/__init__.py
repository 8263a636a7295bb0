"""An evaluation as one HTML page to look at: tables, curves and every search, without a server or the internet."""
