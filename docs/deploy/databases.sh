#!/bin/sh
# Run once by the image of PostgreSQL on an empty volume: a role without superuser rights, and the four databases it owns.
set -eu
psql --username postgres --set ON_ERROR_STOP=1 --set "password=$PLATFORM_PASSWORD" <<'SQL'
CREATE ROLE platform LOGIN PASSWORD :'password';
CREATE DATABASE control OWNER platform;
CREATE DATABASE us_east_1 OWNER platform;
CREATE DATABASE eu_west_1 OWNER platform;
CREATE DATABASE ap_southeast_1 OWNER platform;
SQL
