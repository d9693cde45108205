"""`harmonium merge`: a checkpoint with a LoRA adapter merged into it."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("adapter", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--bf16",
    is_flag=True,
    help="Write all experts in BF16. Nothing of the change is rounded away; three times the size.",
)
def merge(checkpoint: Path, adapter: Path, target: Path, bf16: bool) -> int:
    """Write CHECKPOINT with ADAPTER merged into it to the new folder TARGET.

    CHECKPOINT is a folder of a gpt-oss checkpoint, ADAPTER one that PEFT's save_pretrained wrote.
    """
    from engines.errors import EngineStartError  # imported for a merge only: torch
    from parts.lora.files import AdapterError
    from parts.lora.merge import Merge

    try:
        done = Merge(checkpoint, adapter, bf16=bf16).write(target, click.echo)
    except (AdapterError, EngineStartError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or target}: {error.strerror}") from None
    click.echo(f"{done.num_changed} tensors changed: {target}")
    if done.kept is not None:
        click.echo(
            f"MXFP4 keeps {done.kept:.0%} of the change to the experts. `--bf16` keeps all of it."
        )
    click.echo(f"Serve it: NIM_MODEL_PATH={target} harmonium serve")
    return 0
