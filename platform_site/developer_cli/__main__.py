"""`python -m platform_site.developer_cli`, from a checkout."""

from platform_site.developer_cli.main import app

app(prog_name="platform")
