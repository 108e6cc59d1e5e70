"""The operators' pages under `/admin` that belong to no single app. In the top layer, because they read all apps."""
