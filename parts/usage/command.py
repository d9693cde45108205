"""`harmonium usage`: what a server has counted, as a table, CSV or JSON.

Exit codes: 0 shown, 1 the server cannot be asked or refuses, 2 bad arguments.
"""

from __future__ import annotations

from datetime import datetime

import click

from service.cli.server_flags import key_flag, url_flag


@click.command()
@click.option(
    "--by", default="day", show_default=True, metavar="key,day", help="Of key,tenant,model,day."
)
@click.option("--start", type=click.DateTime(["%Y-%m-%d"]), help="The first day (UTC).")
@click.option("--end", type=click.DateTime(["%Y-%m-%d"]), help="The last day. Default: today.")
@click.option("--csv", "form", flag_value="csv", help="CSV.")
@click.option("--json", "form", flag_value="json", help="Machine-readable output.")
@url_flag()
@key_flag()
def usage(
    by: str,
    start: datetime | None,
    end: datetime | None,
    form: str | None,
    url: str,
    key: str | None,
) -> None:
    """Show the requests and tokens that a server has counted (NIM_USAGE=1)."""
    from parts.usage.remote import ask  # imported for requests only

    given = {"group_by": by, "start": start and start.date(), "end": end and end.date()}
    query = {name: str(value) for name, value in given.items() if value is not None}
    base = url.rstrip("/").removesuffix("/v1")
    click.echo(ask(base, key, query, form or "table"), nl=False)
