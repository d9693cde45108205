"""`harmonium run-batch`: a file of requests to a server, and its results to another file.

Exit codes: 0 all requests were answered, 1 some were not, or the batch failed.
"""

from __future__ import annotations

from pathlib import Path

import click

from service.cli.server_flags import key_flag, url_flag


@click.command()
@click.argument("input", required=False, type=click.Path(path_type=Path))
@click.argument("output", required=False, type=click.Path(path_type=Path))
@click.option("-i", "--input-file", type=click.Path(path_type=Path), help="The same as INPUT.")
@click.option("-o", "--output-file", type=click.Path(path_type=Path), help="The same as OUTPUT.")
@click.option("--batch", "batch_id", metavar="ID", help="Wait for this batch, and send no file.")
@url_flag()
@key_flag()
def run_batch(
    input: Path | None,
    output: Path | None,
    input_file: Path | None,
    output_file: Path | None,
    batch_id: str | None,
    url: str,
    key: str | None,
) -> int:
    """Send a file of requests to a server as a batch, and write all results to OUTPUT."""
    source = input_file or input
    target = output_file or (input if batch_id and output is None else output)
    if target is None or (source is None and batch_id is None):
        raise click.UsageError("Name the file of requests and the file for the results.")
    from parts.batches.remote import run  # imported for requests only

    return run(url.rstrip("/").removesuffix("/v1"), key, source, batch_id, target)
