"""The command line: parse, call, print; nothing else.

Exit codes: 0 all written, 1 some failed, 2 bad input, 130 interrupted by Ctrl-C, SIGTERM or SIGHUP.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from omnitts import __version__
from omnitts.console import close_stdout, ignore_signals, prepare_streams, spin_less, stop_on_signals
from omnitts.errors import InputError, counted, shown_path
from omnitts.options import json_option, json_target, out_option, replace_option, sink, source, target

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

MOST_SHOWN = 20  # errors or warnings; more would scroll the first ones away


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: a user's mistake, or a system's refusal, becomes its own lines on stderr, never a traceback."""
    spin_less()
    prepare_streams()
    stop_on_signals()
    code = _run(arguments)
    ignore_signals()  # one that comes while Python shuts down would change the exit code
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        return cli.main(arguments, prog_name="omnitts", standalone_mode=False) or 0
    except InputError as error:
        _complain(error)
        return EXIT_BAD_INPUT
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        _complain(_in_one_line(error))
        return EXIT_BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except OSError as error:  # a full disk, a folder that went away, an output that nobody takes
        click.echo(f"error: {InputError(error.strerror or str(error), file=error.filename)}", err=True)
        close_stdout()
        return EXIT_FAILED


def _in_one_line(error: click.ClickException) -> InputError:
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f"; see `{context.command_path} --help`"
    return InputError(error.format_message().rstrip(".") + hint)


def _complain(error: InputError) -> None:
    lines = str(error).splitlines()
    _say_first("error", lines)
    if len(lines) > 1:
        click.echo(f"{len(lines):,} errors; nothing was started", err=True)


def _say_first(kind: str, lines: Sequence[str]) -> None:
    for line in lines[:MOST_SHOWN]:
        click.echo(f"{kind}: {line}", err=True)
    if len(lines) > MOST_SHOWN:
        click.echo(f"... and {counted(len(lines) - MOST_SHOWN, f'more {kind}')}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="omnitts")
def cli() -> None:
    """Batch speech synthesis: manifests in, audio files out.

    \b
      omnitts check lines.jsonl                     is the manifest all right?
      omnitts plan  lines.jsonl                     what would be run?
      omnitts synth lines.jsonl --out wavs/         voice it
      omnitts doctor                                is all well here?

    A manifest is JSON Lines ({"id": ..., "text": ...}, one utterance a line), a .txt file (a line an
    utterance) or a .lst list (id|ref_text|ref_audio|text).

    Exit codes: 0, all went well; 1, something failed; 2, the input was refused; 130, interrupted. They are the same
    where nobody reads the output to its end.
    """


class Whole(click.IntRange):
    name = "whole number"  # as messages call it


def _options(*options: Any) -> Any:
    """One decorator of several options, for commands that share them."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


recipe_options = _options(
    click.option(
        "--recipe",
        default="default",
        show_default=True,
        metavar="NAME|FILE",
        callback=source,
        help="Sampling settings: a name from `omnitts recipes`, or a YAML file.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a setting of the recipe, for example --set num_step=24. May be repeated.",
    ),
)

manifest_options = _options(
    click.argument("manifest", metavar="MANIFEST", callback=source),
    recipe_options,
    click.option(
        "--voice",
        metavar="FILE",
        callback=source,
        help="Voice for the lines without one of their own, made by `omnitts voice create`.",
    ),
    click.option("--limit", type=Whole(min=1), metavar="N", help="Only the first N utterances."),
)


portable_option = click.option(
    "--portable-names",
    is_flag=True,
    help="Refuse ids that not every file system can hold, or tell apart, rather than warn of them: con, a:b, Ab beside "
    "aB, unseen characters.",
)


def _shard(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """I/N as two whole numbers, 1 <= I <= N."""
    if value is None:
        return None
    number, slash, parts = value.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise click.BadParameter(f"{value!r} is no part of a whole: write 1/8 for the first of eight")
    return int(number), int(parts)


model_option = click.option(
    "--model",
    metavar="FOLDER|HUB_ID|NAME",
    callback=source,
    help="Checkpoint: a folder, a hub id such as k2-fsa/OmniVoice, or a bundled one: mini, small and English, or "
    "noise, random weights for tests.  [default: mini]",
)

device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda[:N]",
    help="Where to run; auto is the first GPU, else the CPU.",
)

dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16", "fp8"]),
    default="auto",
    show_default=True,
    help="Arithmetic of the model; auto follows the recipe's precision, else suits the device. fp8 is for GPUs of "
    "compute capability 8.9 or later.",
)

positions_option = click.option(
    "--max-positions",
    type=Whole(min=1),
    metavar="N",
    help="Most positions in a batch, which bounds memory; a single clip of more is a batch of its own. "
    "Changes no result.  [default: 1024 on a CPU, 8192 on a GPU or, for 200 lines and more, the best, by measurement]",
)


format_option = click.option(
    "--format",
    type=click.Choice(["wav", "flac", "ogg", "opus", "mp3"]),
    default="wav",
    show_default=True,
    help="Audio format, mono; ogg is Vorbis, opus is Opus in an Ogg file.",
)

output_options = _options(
    format_option,
    click.option(
        "--sample-rate",
        type=Whole(min=8_000, max=48_000),
        metavar="HZ",
        default=24_000,
        show_default=True,
        help="Of the files, from 8000 to 48000; the model makes 24000. mp3 and opus know a few rates only.",
    ),
    click.option(
        "--subtype",
        type=click.Choice(["PCM_16", "PCM_24", "PCM_32", "FLOAT"]),
        help="Samples of wav (all four) and flac (the first two).  [default: PCM_16]",
    ),
    click.option(
        "--audio-quality",
        type=float,
        metavar="0..1",
        help="Of ogg, opus and mp3: 1 is the best, and the largest.  [default: the encoder's own]",
    ),
)

layout_option = click.option(
    "--layout",
    metavar="flat|nested:N",
    help="nested:2 spreads the files over DIR/ab/cd/, two hex digits a level, by a hash of the id: for so many "
    "lines that one folder would be slow.  [default: flat]",
)

shards_option = click.option(
    "--webdataset",
    "shard_size",
    type=Whole(min=1),
    metavar="SIZE",
    help="Write tar shards of SIZE utterances, DIR/000000.tar and so on, in place of single files: ID.wav, ID.json "
    "and ID.codes.npy of each.",
)

codes_option = click.option(
    "--save-codes", is_flag=True, help="Also write DIR/ID.codes.npy, the codes [8, frames] as int16."
)

part_option = click.option(
    "--shard",
    "part",
    metavar="I/N",
    callback=_shard,
    help="Voice one of N parts of the manifest: every N-th line from the I-th. For job arrays, which may share DIR.",
)

place_options = _options(
    click.option(
        "--out", metavar="DIR", callback=sink, help="Also look whether `synth` into this folder is all right."
    ),
    format_option,
    layout_option,
    shards_option,
    codes_option,
    part_option,
    replace_option,
)


@cli.command()
@manifest_options
@click.option("--out", required=True, metavar="DIR", callback=sink, help="Folder for the results.")
@model_option
@device_option
@dtype_option
@output_options
@layout_option
@shards_option
@positions_option
@click.option(
    "--no-cuda-graphs", is_flag=True, help="On a GPU, launch kernels one by one: slower, with nothing to capture first."
)
@codes_option
@click.option(
    "--resume/--overwrite",
    "resume",
    default=True,
    show_default=True,
    help="Make only what an earlier run into DIR has not made, or all of it again. A line whose text, reference, "
    "recipe or model changed counts as not made.",
)
@click.option(
    "--keep-going",
    is_flag=True,
    help="Voice the good lines of a manifest that has bad ones. These are recorded as failed; the exit code is 1.",
)
@portable_option
@click.option("--retry-failed", is_flag=True, help="Also make again the lines that failed in an earlier run.")
@replace_option
@part_option
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where models run: in this process, or in actors of Ray, one a GPU; needs the extra ray.",
)
@click.option(
    "--workers", type=Whole(min=1), metavar="N", help="Actors.  [default: one a GPU, or on CPUs one for two cores]"
)
@click.option(
    "--ray-address", metavar="ADDRESS", help="A cluster's, or auto.  [default: Ray is started on this machine]"
)
@click.option(
    "--dump-logprobs",
    "dump_folder",
    metavar="FOLDER",
    callback=sink,
    help="Also write FOLDER/ID.dump.safetensors: what the decoder saw at each step; for `omnitts dump`.",
)
@click.option(
    "--dump-steps",
    metavar="all|0,7,31|every:4",
    help="Steps to dump, by their numbers from 0.  [default: all]",
)
@click.option(
    "--dump-top",
    type=Whole(min=1, max=1024),
    metavar="N",
    help="Also dump the N likeliest tokens of every cell, with their logprobs.",
)
@click.option("--dump-ids", metavar="ID,...", help="Utterances to dump.  [default: all]")
@click.option(
    "--dump-dtype",
    type=click.Choice(["float16", "float32"]),
    help="Of the numbers in a dump.  [default: float16]",
)
@click.option(
    "--log-stats",
    is_flag=True,
    help="Say at the end where the time went and how full the batches were, also in DIR/summary.json.",
)
@click.option("--quiet", is_flag=True, help="No progress and no notes; warnings and errors still go to stderr.")
def synth(
    manifest: str,
    recipe: str,
    settings: tuple[str, ...],
    voice: str | None,
    limit: int | None,
    out: str,
    model: str | None,
    device: str,
    dtype: str,
    format: str,
    sample_rate: int,
    subtype: str | None,
    audio_quality: float | None,
    layout: str | None,
    shard_size: int | None,
    max_positions: int | None,
    no_cuda_graphs: bool,
    save_codes: bool,
    resume: bool,
    keep_going: bool,
    portable_names: bool,
    retry_failed: bool,
    replace: bool,
    part: tuple[int, int] | None,
    engine: str,
    workers: int | None,
    ray_address: str | None,
    dump_folder: str | None,
    dump_steps: str | None,
    dump_top: int | None,
    dump_ids: str | None,
    dump_dtype: str | None,
    log_stats: bool,
    quiet: bool,
) -> int:
    """Voice every line of MANIFEST into DIR.

    Writes DIR/ID.wav, DIR/results.jsonl (a line an utterance) and DIR/summary.json. MANIFEST may be - for
    JSON Lines from standard input. It is checked as a whole, as by `omnitts check`, before work starts; with
    --keep-going bad lines are left out. An utterance that fails later is recorded in results.jsonl and costs no
    other.

    The same command again goes on where a run ended, however it did. Ctrl-C, SIGTERM or SIGHUP ends one after the
    batch at hand; a second one ends it at once. `omnitts status DIR` says how far it is.

    Exit codes: 0, all are there; 1, some failed, or the run could not go on; 2, the input was refused, or another
    run is writing into DIR; 130, interrupted.

    \b
      omnitts synth lines.jsonl --out wavs/ --recipe fast
      omnitts synth lines.jsonl --out wavs/ --model k2-fsa/OmniVoice --device cuda
      omnitts synth lines.jsonl --out wavs/ --sample-rate 48000 --subtype PCM_24
      omnitts synth lines.jsonl --out mp3s/ --format mp3 --audio-quality 0.8
      omnitts synth lines.jsonl --out shards/ --format flac --webdataset 1000
      omnitts synth lines.jsonl --out wavs/ --layout nested:2 --shard 3/8
      omnitts synth lines.jsonl --out wavs/ --dump-logprobs dumps/ --dump-ids greeting,farewell
      echo '{"text": "Hello."}' | omnitts synth - --out wavs/ --set num_step=8
    """
    from omnitts.encoding import AudioOptions, check_encoder

    audio = AudioOptions(format, sample_rate, subtype, audio_quality)
    check_encoder(audio)
    run_recipe, lines = _read(manifest, recipe, settings, voice, limit, keep_going, portable_names)

    from omnitts import job, tts
    from omnitts.dump.options import check_dumps, read_dumps
    from omnitts.files import check_folder
    from omnitts.fleet import Load, launch
    from omnitts.losses import source_of
    from omnitts.model.checkpoint import DEFAULT_MODEL, open_checkpoint, resolve_model
    from omnitts.output import Output
    from omnitts.prepare import check_voices, tag_doubts
    from omnitts.progress import reporter

    dumps = read_dumps(dump_folder, dump_steps, dump_top, dump_ids, dump_dtype)
    if dumps is not None:
        check_dumps(dumps, lines.utterances, lines.recipes)
    placed = _placed(layout, shard_size, save_codes)
    output = Output(Path(out), audio, save_codes, dumps, placed, shard_size, part, replace)
    precision = run_recipe.precision if dtype == "auto" else dtype
    if engine == "local":
        if workers is not None or ray_address is not None:
            raise InputError("of use with --engine ray only", field="--workers" if workers else "--ray-address")
        on = tts.resolve_device(device)
        exact = tts.resolve_dtype(precision, on)
    checkpoint = open_checkpoint(resolve_model(model))
    check_voices(checkpoint, lines.voices, file=lines.name, run_voice=voice)
    _say_first("warning", tag_doubts(checkpoint, lines.tags, file=lines.name))
    _check_output(output, lines, model, recipe, voice)
    # After what may be refused, which leaves no folder behind, and before the tensors, which take a while.
    check_folder(output.folder, "--out", (output.results.name, output.summary.name))
    if dumps is not None:
        check_folder(dumps.folder, "--dump-logprobs")
    if model is None and not quiet:
        click.echo(BUNDLED_NOTE, err=True)
    encoder, graphs = bool(lines.recordings), not no_cuda_graphs

    def load() -> Any:
        if engine == "local":
            return tts.load_checkpoint(checkpoint, on, exact, encoder=encoder, cuda_graphs=graphs)
        fleet = launch(Load(model, device, precision, graphs, encoder), checkpoint, workers, ray_address)
        return ending.enter_context(closing(fleet))

    with ExitStack() as ending:
        totals = job.run_job(
            checkpoint,
            load,
            lines.utterances,
            output,
            asked={
                **{"manifest": lines.name, "recipe": recipe, "settings": settings, "voice": voice},
                **{"limit": limit, "model": DEFAULT_MODEL if model is None else model},
            },
            max_positions=max_positions,
            progress=reporter(len(lines.utterances), quiet=quiet),
            source=source_of(lines, output.folder),
            again=job.Again(not resume, retry_failed),
            refused=lines.refused,
            log_stats=log_stats,
        )
    if totals.stopped:
        click.echo(f"error: {totals.stopped}", err=True)
    if not quiet or not totals.all_well:
        click.echo(_closing_line(totals, output), err=True)
    if totals.interrupted:
        return EXIT_INTERRUPTED
    return 0 if totals.all_well else EXIT_FAILED


def _check_output(output: Any, lines: Any, model: str | None, recipe: str, voice: str | None) -> None:
    """Raises InputError where ids do not fit into shards, or a file would be lost that the run did not write."""
    from omnitts.losses import refuse_losses
    from omnitts.shards import check_shard_ids

    if output.shard_size is not None:
        check_shard_ids(lines.utterances, file=lines.name)
    refuse_losses(output, lines, _inputs(model, recipe, lines, voice))


def _inputs(model: str | None = None, recipe: str | None = None, lines: Any = None, voice: str | None = None) -> Any:
    """All files that a command reads."""
    from omnitts.inputs import Inputs
    from omnitts.sources import add_manifest, add_model, add_recipe

    inputs = Inputs()
    add_model(inputs, model)
    if recipe is not None:
        add_recipe(inputs, recipe)
    if lines is not None:
        add_manifest(inputs, lines, voice)
    return inputs


def _placed(layout: str | None, shard_size: int | None, save_codes: bool) -> Any:
    """The Layout of single files. Raises InputError for options of theirs where shards are wanted."""
    from omnitts.layout import Layout, read_layout

    if shard_size is not None and layout is not None:
        raise InputError("of no use with --webdataset, whose shards lie side by side: leave it out", field="--layout")
    if shard_size is not None and save_codes:
        raise InputError("of no use with --webdataset, whose shards hold the codes: leave it out", field="--save-codes")
    return Layout() if layout is None else read_layout(layout)


BUNDLED_NOTE = (
    "note: using the bundled checkpoint, mini: a small model of English in two synthetic voices; "
    "for the full one, of all voices and languages: --model k2-fsa/OmniVoice"
)


def _check_place(
    lines: Any,
    model: str | None,
    recipe: str,
    voice: str | None,
    *,
    out: str | None,
    format: str,
    layout: str | None,
    shard_size: int | None,
    save_codes: bool,
    part: tuple[int, int] | None,
    replace: bool,
) -> None:
    """For `check` and `plan`: raises InputError where `synth` would refuse the folder. Without one, all is right."""
    if out is None:
        return
    from omnitts.encoding import AudioOptions
    from omnitts.output import Output

    placed = _placed(layout, shard_size, save_codes)
    output = Output(Path(out), AudioOptions(format), save_codes, None, placed, shard_size, part, replace)
    _check_output(output, lines, model, recipe, voice)


def _closing_line(totals: Any, output: Any) -> str:
    factor = totals.real_time_factor
    line = f"{totals.written:,} of {totals.utterances:,} written to {shown_path(output.folder)}"
    if totals.kept:
        line += f", {totals.kept:,} were there"
    if totals.failed:
        line += f", {totals.failed:,} failed (see {shown_path(output.results)})"
    if totals.failed_before:
        line += f", {totals.failed_before:,} had failed before (--retry-failed tries them again)"
    if totals.dumps_failed:
        line += f", {counted(totals.dumps_failed, 'dump')} not written"
    if totals.interrupted:
        line += ", interrupted"
    if factor is not None:
        line += f"; {totals.audio_seconds:.1f} s of audio in {totals.wall_seconds:.1f} s, real-time factor {factor:.3f}"
    return line


def _read(
    manifest: str,
    recipe: str,
    settings: tuple[str, ...],
    voice: str | None,
    limit: int | None,
    keep_going: bool = False,
    portable_names: bool = False,
) -> Any:
    """Reads recipe and manifest and prints the warnings; returns (recipe of the run, Manifest)."""
    from omnitts.manifest import read_all

    run_recipe, reading = _reading(manifest, recipe, settings, voice, limit, portable_names)
    reading.keep_going = keep_going
    lines = read_all(reading)
    _say_first("warning", lines.warnings)
    return run_recipe, lines


def _reading(
    manifest: str,
    recipe: str,
    settings: tuple[str, ...],
    voice: str | None,
    limit: int | None,
    portable_names: bool = False,
) -> Any:
    """Reads the recipe; returns (recipe of the run, the manifest's Reading)."""
    from omnitts.manifest import Reading
    from omnitts.recipe import load_recipe, parse_settings, with_settings

    overrides = parse_settings(settings)
    base = load_recipe(recipe)
    run_recipe = with_settings(base, overrides, file="--set")
    reading = Reading(
        manifest, recipe=base, settings=overrides, voice=voice, limit=limit, portable_names=portable_names
    )
    return run_recipe, reading


@cli.command()
@manifest_options
@portable_option
@place_options
def check(
    manifest: str,
    recipe: str,
    settings: tuple[str, ...],
    voice: str | None,
    limit: int | None,
    portable_names: bool,
    **place: Any,
) -> None:
    """Validate MANIFEST, its recipes and its references, without loading a model.

    A recording is read up to 60 s after its first sound: it must be audio, at least 0.04 s of it, and not silent. One
    is warned of recordings that are very quiet, of channels that cancel, and of words that do not fit the length.
    Voice files are read whole. What else would fail is seen by `plan`, which reads recordings to their end: damage
    further on, a voice made with another codec, and a text too long to be made in one piece at the pace of its
    recording.

    With --out, also that the run would cost nobody a file: what it reads, what omnitts did not write, and what it wrote
    for another manifest is never replaced.

    All errors are counted and the first 20 told, each with file, line and field. Exit code 0 if there are none,
    else 2.
    """
    _, lines = _read(manifest, recipe, settings, voice, limit, portable_names=portable_names)
    _check_place(lines, None, recipe, voice, **place)
    references = len(lines.recordings) + len(lines.voices)
    recipes = {recipe.name for recipe in lines.recipes}
    click.echo(
        f"{shown_path(lines.name)}: {counted(len(lines.utterances), 'utterance')}, {counted(references, 'reference')}, "
        f"{counted(len(recipes), 'recipe')}: all right"
        + ("; of recordings the start was read, `omnitts plan` reads all" if lines.recordings else "")
    )


@cli.command()
@manifest_options
@portable_option
@model_option
@positions_option
@place_options
def plan(
    manifest: str,
    recipe: str,
    settings: tuple[str, ...],
    voice: str | None,
    limit: int | None,
    portable_names: bool,
    model: str | None,
    max_positions: int | None,
    **place: Any,
) -> int:
    """Print the batches that `synth` would run for MANIFEST, without loading a model.

    A clip is an utterance, or one of the chunks that a long one is made in; frames are what is to be made, 25 a
    second. Positions are what a batch's packed row holds: prompt, reference and target of each clip, and the
    target once more where it is guided. Nothing is padded. Only the tokenizer of the checkpoint is read. With --out it
    also looks, as `check` does, whether the run would cost nobody a file.

    Exit codes: 0, nothing stands against it; 1, some utterances would fail, each of them named; 2, the input was
    refused.
    """
    _, reading = _reading(manifest, recipe, settings, voice, limit, portable_names)

    from omnitts.manifest import Lines
    from omnitts.model.checkpoint import load_tokenizer, open_checkpoint, resolve_model
    from omnitts.packing import DEFAULT_MAX_POSITIONS
    from omnitts.plan import Unusable, describe, plan_job
    from omnitts.prepare import check_voices, tag_doubts

    checkpoint = open_checkpoint(resolve_model(model))
    if max_positions is None:
        from omnitts.tts import resolve_device  # torch, which takes a while to import

        max_positions = DEFAULT_MAX_POSITIONS[resolve_device("auto").type]
    plans = list(plan_job(load_tokenizer(checkpoint), reading, max_positions))
    lines = reading.manifest(Lines(reading))
    _say_first("warning", lines.warnings)
    check_voices(checkpoint, lines.voices, file=lines.name, run_voice=voice)
    _say_first("warning", tag_doubts(checkpoint, lines.tags, file=lines.name))
    _check_place(lines, model, recipe, voice, **place)
    for line in describe(plans, lines.name):
        click.echo(line)
    return EXIT_FAILED if any(isinstance(plan, Unusable) for plan in plans) else 0


@cli.command()
@click.argument("folder", metavar="DIR", callback=source)
@click.option("--verify", is_flag=True, help="Read all files, and compare their digests with those in results.jsonl.")
def status(folder: str, verify: bool) -> int:
    """Say how far the job in DIR is, the --out folder of a `synth` that runs, was ended, or is done.

    It looks whether each file is there, as long as it was written, and whether the manifest has more lines by now.

    Exit codes: 0, all of it is written and there; 1, lines are left, have failed, or their files are not as they were;
    2, there is no job in DIR.
    """
    from omnitts.status import describe, read_parts, unbegun

    parts = read_parts(Path(folder), verify=verify)
    for line in describe(parts):
        click.echo(line)
    complete = all(part.complete and part.left == 0 for part in parts) and not unbegun(parts)
    return 0 if complete else EXIT_FAILED


@cli.group(invoke_without_command=True)
@click.pass_context
def recipes(context: click.Context) -> None:
    """List the named recipes; `recipes show NAME` prints one."""
    if context.invoked_subcommand is None:
        from omnitts.recipe import named_recipes

        for name, recipe in named_recipes().items():
            click.echo(f"{name:<10} {recipe.num_step:>3} steps   {recipe.description}")


@recipes.command("show")
@click.argument("name", metavar="NAME|FILE", callback=source)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting first.")
def recipes_show(name: str, settings: tuple[str, ...]) -> None:
    """Print all settings of a recipe as YAML, with what they mean: a start for one of your own."""
    from omnitts.recipe import dump_yaml, load_recipe, parse_settings, with_settings

    click.echo(dump_yaml(with_settings(load_recipe(name), parse_settings(settings), file="--set")), nl=False)


@cli.command("languages")
@click.argument("search", default="")
def languages_command(search: str) -> int:
    """List the languages that a manifest's `language` may name, or those with SEARCH at the start of a word.

    A line has the id, and the names and other codes that stand for it. Case and accents do not matter.

    \b
      omnitts languages arabic
    """
    from omnitts.model.language import languages

    found = languages(search)
    if not found:
        raise InputError(f"no language with {search!r} at the start of a word; `omnitts languages` lists all")
    for language, names in found.items():
        click.echo(f"{language:<5} {', '.join(names)}")
    return 0


@cli.group()
def voice() -> None:
    """Make voices out of reference audio."""


@voice.command("create")
@click.argument("ref_audio", metavar="REF_AUDIO", callback=source)
@click.option("--text", required=True, metavar="TRANSCRIPT", help="The words spoken in REF_AUDIO.")
@out_option("NAME.safetensors")
@model_option
@device_option
def voice_create(ref_audio: str, text: str, out: str, replace: bool, model: str | None, device: str) -> None:
    """Encode REF_AUDIO once, for a manifest's `voice` field or --voice.

    3 to 10 seconds of clean speech serve best. A voice belongs to the codec of the checkpoint that made it.
    """
    from omnitts import tts
    from omnitts.doubts import reference_doubts
    from omnitts.inputs import Inputs
    from omnitts.levels import level_doubts
    from omnitts.model.checkpoint import open_checkpoint, resolve_model
    from omnitts.model.duration import FRAME_RATE
    from omnitts.model.text import has_words
    from omnitts.model.voice import KIND, check_recording, save_voice
    from omnitts.recipe import shown
    from omnitts.sources import add_model

    path = target(out, "--out", KIND, replace)
    inputs = Inputs()
    inputs.add(ref_audio, "the recording")
    add_model(inputs, model)
    path.check_free(inputs)
    if not has_words(text):
        raise InputError(
            f"{shown(text)} has no word in it: write what is spoken in {shown_path(ref_audio)}", field="--text"
        )
    torch_device = tts.resolve_device(device)
    checkpoint = open_checkpoint(resolve_model(model))
    probe = check_recording(ref_audio)
    for doubt in level_doubts(ref_audio, probe.levels):
        click.echo(f"warning: REF_AUDIO: {doubt}", err=True)
    for field, doubt in reference_doubts(ref_audio, probe.seconds, text):
        click.echo(f"warning: {'--text' if field == 'ref_text' else 'REF_AUDIO'}: {doubt}", err=True)
    torch_dtype = tts.resolve_dtype("auto", torch_device)
    speaker = tts.load_checkpoint(checkpoint, torch_device, torch_dtype, encoder=True)
    made = speaker.encode_voice(ref_audio, text)
    save_voice(path, made)
    click.echo(f"{shown_path(out)}: {made.frames} frames, {made.frames / FRAME_RATE:.1f} s")


@cli.group()
def dump() -> None:
    """Look at dumps: what the decoder saw at each step of an utterance.

    `omnitts synth --dump-logprobs DIR` writes them, DIR/ID.dump.safetensors.

    \b
      omnitts synth lines.jsonl --out wavs/ --dump-logprobs dumps/
      omnitts dump report dumps/ --wavs wavs/ -o report.html             which lines want a second look?
      omnitts dump show dumps/greeting.dump.safetensors                  one of them, as text
      omnitts dump plot dumps/greeting.dump.safetensors -o greeting.png  and as a picture
      omnitts dump diff old/greeting.dump.safetensors dumps/greeting.dump.safetensors
      omnitts dump export dumps/ -o cells.parquet                        all cells as a table
    """


dump_argument = click.argument("file", metavar="FILE", callback=source)
dumps_argument = click.argument("folder", metavar="DIR", callback=source)


@dump.command("show")
@dump_argument
def dump_show(file: str) -> None:
    """Print what a dump tells.

    That is its steps, its codebooks, and its least certain cells. Logprobs are in nats, under the distribution that
    tokens were chosen from. What was not dumped is shown as -.

    \b
      omnitts dump show dumps/greeting.dump.safetensors
    """
    from omnitts.dump import load
    from omnitts.dump.show import show

    for line in show(load(file)):
        click.echo(line)


@dump.command("plot")
@dump_argument
@out_option("OUT.png|.svg")
@click.option(
    "--wav",
    metavar="FILE",
    callback=source,
    help="Audio for the waveform.  [default: a file of the dump's name beside it: ID.wav, .flac, .ogg, .opus, .mp3]",
)
def dump_plot(file: str, out: str, replace: bool, wav: str | None) -> None:
    """Draw a dump over time.

    When each cell was revealed and how surely, with the waveform. Needs matplotlib, of the extra plot.

    \b
      omnitts dump plot dumps/greeting.dump.safetensors -o greeting.png --wav wavs/greeting.wav
    """
    from omnitts.dump import load
    from omnitts.dump.plot import KIND, write_plot
    from omnitts.dump.recording import Recording, find_audio
    from omnitts.inputs import Inputs

    path = target(out, "--out", KIND, replace)
    inputs = Inputs()
    inputs.add(file, "the dump")
    audio = Recording(Path(wav)) if wav else find_audio(Path(file))
    if audio is not None:
        inputs.add(audio.path, "the audio")
    path.check_free(inputs)
    loaded = load(file)
    write_plot(path, loaded, None if audio is None else audio.wave())
    click.echo(f"{shown_path(out)}: {loaded.id}, " + (f"with {audio}" if audio else "no audio found beside the dump"))


@dump.command("diff")
@click.argument("file_a", metavar="A", callback=source)
@click.argument("file_b", metavar="B", callback=source)
def dump_diff(file_a: str, file_b: str) -> int:
    """Say where two runs of a line part, and why.

    That may be rounding, or a real difference. Compares the steps that both dumps have. Their texts and lengths must
    be the same.

    Exit codes: 0, equal: the same tokens and reveals, and numbers within the rounding of the dumps' dtype; 1, they
    differ; 2, they cannot be compared.

    \b
      omnitts dump diff cpu/greeting.dump.safetensors gpu/greeting.dump.safetensors
    """
    from omnitts.dump import load
    from omnitts.dump.diff import compare, describe

    difference = compare(load(file_a), load(file_b))
    for line in describe(difference, file_a, file_b):
        click.echo(line)
    return 0 if difference.equal else EXIT_FAILED


@dump.command("report")
@dumps_argument
@click.option(
    "--wavs",
    metavar="DIR",
    callback=source,
    help="Folder of the audio, that `synth` wrote into.  [default: beside the dumps]",
)
@out_option("REPORT.html")
def dump_report(folder: str, wavs: str | None, out: str, replace: bool) -> int:
    """Write one HTML page of all dumps in DIR.

    It is a table to sort and search, with audio, pictures and outliers. The page holds all it shows, and needs no
    network. Audio takes about 7 KB a second of it, and may lie in files or in tar shards. A dump that cannot be read is
    listed at its end.

    Exit codes: 0, all are in the page; 1, some could not be read, or with --wavs have no audio there; 2, the input was
    refused.

    \b
      omnitts dump report dumps/ --wavs wavs/ -o report.html
    """
    from omnitts.dump.format import paths
    from omnitts.dump.recording import check_folder, find_all, without_audio
    from omnitts.dump.report import KIND, write_report
    from omnitts.inputs import Inputs
    from omnitts.sources import add_files

    path = target(out, "--out", KIND, replace)
    if wavs is not None:
        check_folder(wavs, "--wavs")
    dumps = paths(folder)
    recordings, unread = find_all(dumps, None if wavs is None else Path(wavs))
    inputs = Inputs()
    add_files(inputs, dumps, "a dump,")
    add_files(inputs, {recording.path for recording in recordings.values()}, "audio,")
    path.check_free(inputs)
    written = write_report(path, dumps, recordings, folder)
    complaints = [*unread, *written.complaints]
    if wavs is not None and written.silent:
        complaints.append(without_audio(written.silent, written.dumps, wavs))
    _say_first("warning", complaints)
    click.echo(f"{shown_path(out)}: {counted(written.dumps, 'dump')}")
    return EXIT_FAILED if complaints else 0


@dump.command("export")
@dumps_argument
@out_option("CELLS.parquet")
def dump_export(folder: str, out: str, replace: bool) -> int:
    """Write all cells of DIR's dumps as a table.

    In Parquet, a row a cell and step, for DuckDB, pandas and others. Needs pyarrow, of the extra parquet.

    Exit codes: 0, all are in the table; 1, some could not be read, and are left out; 2, the input was refused.

    \b
      omnitts dump export dumps/ -o cells.parquet
      duckdb -c "SELECT codebook, avg(logprob) FROM 'cells.parquet' WHERE step = revealed_at GROUP BY codebook"
    """
    from omnitts.dump.export import KIND, export
    from omnitts.dump.format import paths
    from omnitts.inputs import Inputs
    from omnitts.sources import add_files

    path = target(out, "--out", KIND, replace)
    inputs = Inputs()
    add_files(inputs, paths(folder), "a dump,")
    path.check_free(inputs)
    rows, complaints = export(path, folder)
    _say_first("warning", complaints)
    click.echo(f"{shown_path(out)}: {counted(rows, 'row')}")
    return EXIT_FAILED if complaints else 0


@cli.command("doctor")
@model_option
@device_option
@json_option
def doctor_command(model: str | None, device: str, out: str | None, replace: bool) -> int:
    """Say what is installed here, what is used and why, and whether it works.

    Versions, machine, GPUs, the checkpoint and whether its tensors load, engine and kernels, caches; at last a short
    line is voiced twice. Lines that begin with "problem:" say what is wrong, and the mend. --json FILE is for bug
    reports.

    Exit codes: 0, there is no problem; 1, there are some; 2, an option was refused.

    \b
      omnitts doctor
      omnitts doctor --model k2-fsa/OmniVoice --device cuda --json doctor.json
    """
    from omnitts import doctor

    path = json_target(out, "doctor", replace)
    _check_free(path, model)
    sections = []
    for section in doctor.examine(model, device):
        sections.append(section)
        for line in [section.title, *(f"  {line}" for line in section.lines)]:
            click.echo(line)
        for problem in section.problems:
            click.echo(f"problem: {problem}")
    report = doctor.Report(sections)
    click.echo(counted(len(report.problems), "problem") if report.problems else "no problem")
    if path is not None:
        from omnitts.json_file import write_json

        write_json(path, "doctor", report.as_dict())
    return EXIT_FAILED if report.problems else 0


@cli.group()
def bench() -> None:
    """Measure on this machine: speed, and what a precision changes."""


def _check_free(path: Any, *read: Any) -> None:
    """Raises InputError when the file of --json may not be written. read: the arguments of `_inputs`."""
    if path is not None:
        path.check_free(_inputs(*read))


def _show_figures(lines: Sequence[str], figures: Mapping[str, Any], path: Any, command: str) -> None:
    """A table for the terminal, and JSON for programs."""
    for line in lines:
        click.echo(line)
    if path is not None:
        from omnitts.json_file import write_json

        write_json(path, command, figures)


@bench.command("sampler")
@click.option("--cells", type=Whole(min=8), default=128_000, show_default=True, help="Positions to sample.")
@json_option
def bench_sampler(cells: int, out: str | None, replace: bool) -> None:
    """Time the sampler's kernels: share of the copy bandwidth, and ratios to plain torch and to FlashInfer."""
    from omnitts.bench import sampler

    path = json_target(out, "bench sampler", replace)
    _check_free(path)
    figures = sampler.bench_sampler(cells)
    _show_figures(sampler.sampler_table(figures), figures.as_dict(), path, "bench sampler")


random_option = click.option(
    "--random-weights",
    type=click.Choice(["omnivoice"]),
    help="In place of a checkpoint: random weights of the published sizes, which take the same time.",
)


@bench.command("job")
@model_option
@random_option
@click.option("--utterances", type=Whole(min=1), default=512, show_default=True, help="Lines of the manifest.")
@recipe_options
@device_option
@dtype_option
@positions_option
@json_option
def bench_job(
    model: str | None,
    random_weights: str | None,
    utterances: int,
    recipe: str,
    settings: tuple[str, ...],
    device: str,
    dtype: str,
    max_positions: int | None,
    out: str | None,
    replace: bool,
) -> None:
    """Time a whole job, as `synth` runs it: from a manifest on disk to WAV files on disk.

    Every line clones one of 32 made-up recordings of 3 to 8 s and lasts 2 to 15 s. A small job of the same kind goes
    before it, for what is compiled and captured. All files are in a temporary folder, 0.4 MB an utterance.
    """
    if model is not None and random_weights is not None:
        raise InputError("stands beside --model: give one of them", field="--random-weights")
    from omnitts import tts
    from omnitts.bench import job
    from omnitts.bench.random_weights import omnivoice
    from omnitts.model.checkpoint import open_checkpoint, resolve_model
    from omnitts.recipe import load_recipe, parse_settings, with_settings

    path = json_target(out, "bench job", replace)
    _check_free(path, model, recipe)
    overrides = parse_settings(settings)
    run_recipe = with_settings(load_recipe(recipe), overrides, file="--set")
    torch_device = tts.resolve_device(device)
    torch_dtype = tts.resolve_dtype(run_recipe.precision if dtype == "auto" else dtype, torch_device)

    def load() -> tts.TTS:
        if random_weights is not None:
            return omnivoice(torch_device, torch_dtype)
        return tts.load_checkpoint(open_checkpoint(resolve_model(model)), torch_device, torch_dtype, encoder=True)

    figures = job.bench_job(load, run_recipe, utterances, max_positions)
    _show_figures(job.job_table(figures), figures.as_dict(), path, "bench job")


@bench.command("precision")
@manifest_options
@model_option
@device_option
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "fp8"]),
    default="fp8",
    show_default=True,
    help="The precision in question; on a CPU, bfloat16.",
)
@click.option(
    "--against",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="The one to compare it with; on a CPU, float32.",
)
@json_option
def bench_precision(
    manifest: str,
    recipe: str,
    settings: tuple[str, ...],
    voice: str | None,
    limit: int | None,
    model: str | None,
    device: str,
    dtype: str,
    against: str,
    out: str | None,
    replace: bool,
) -> None:
    """Say what a precision changes on MANIFEST: tokens, logprobs and the choice of cells, and whole loops.

    Both precisions look at the same partly masked canvases, those of the loop in the one given as --against.
    """
    if dtype == against:
        raise InputError(f"{dtype}, as --against: name two precisions", field="--dtype")
    path = json_target(out, "bench precision", replace)
    _, lines = _read(manifest, recipe, settings, voice, limit)
    _check_free(path, model, recipe, lines, voice)

    from omnitts import tts
    from omnitts.bench import precision
    from omnitts.model.checkpoint import open_checkpoint, resolve_model
    from omnitts.prepare import check_voices, tag_doubts

    torch_device = tts.resolve_device(device)
    torch_dtype, reference_dtype = (tts.resolve_dtype(name, torch_device) for name in (dtype, against))
    checkpoint = open_checkpoint(resolve_model(model))
    check_voices(checkpoint, lines.voices, file=lines.name, run_voice=voice)
    _say_first("warning", tag_doubts(checkpoint, lines.tags, file=lines.name))
    encoder = bool(lines.recordings)
    reference = tts.load_checkpoint(checkpoint, torch_device, reference_dtype, encoder=encoder, cuda_graphs=False)
    other = tts.load_engine(checkpoint, torch_device, torch_dtype, cuda_graphs=False)
    figures = precision.bench_precision(reference, other, dtype, list(lines.utterances))
    _show_figures(precision.precision_table(figures), figures.as_dict(), path, "bench precision")


@bench.command("step")
@click.option("--model", metavar="FOLDER|HUB_ID", callback=source, help="Checkpoint, in half precision.")
@random_option
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "fp8"]), default="bfloat16", show_default=True)
@click.option(
    "--work",
    "works",
    type=click.Choice(["seed", "clone"]),
    multiple=True,
    help="seed: 48 positions of text, 100 frames to make; clone: 60 of text, 125 of a reference, 250 to make. "
    "May be repeated.  [default: both]",
)
@click.option("--batch", "batches", type=Whole(min=1), multiple=True, help="Requests in a batch; may be repeated.")
@click.option("--dump", is_flag=True, help="Also time steps of which everything is dumped, and say what that adds.")
@json_option
def bench_step(
    model: str | None,
    random_weights: str | None,
    dtype: str,
    works: tuple[str, ...],
    batches: tuple[int, ...],
    dump: bool,
    out: str | None,
    replace: bool,
) -> None:
    """Time a diffusion step with guidance, beside its matrix products alone, measured in the same run."""
    if (model is None) == (random_weights is None):
        raise InputError("give either --model or --random-weights")
    from omnitts import tts
    from omnitts.bench import step
    from omnitts.engine import FLOAT8, weights_dtype
    from omnitts.model.checkpoint import load_model, open_checkpoint, resolve_model

    path = json_target(out, "bench step", replace)
    _check_free(path, model)
    torch_device = tts.resolve_device("cuda")
    torch_dtype = tts.resolve_dtype(dtype, torch_device)
    weights = weights_dtype(torch_dtype)
    if model is None:
        loaded = step.random_model(step.OMNIVOICE, weights, torch_device)
    else:
        loaded = load_model(open_checkpoint(resolve_model(model)), torch_device, weights)
    chosen = [work for work in step.WORKS if not works or work.name in works]
    figures = step.bench_step(loaded, chosen, batches or step.BATCHES, torch_dtype == FLOAT8, dump)
    _show_figures(step.step_table(figures), figures.as_dict(), path, "bench step")
