DATETIME_FORMAT = r"Y-m-d H:i:s \U\T\C"
DATE_FORMAT = "Y-m-d"
