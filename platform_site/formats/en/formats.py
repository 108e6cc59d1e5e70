"""How the console writes moments: as logs and the API do (UTC), so that they can be compared and searched."""

DATETIME_FORMAT = r"Y-m-d H:i:s \U\T\C"
DATE_FORMAT = "Y-m-d"
