"""The commands `wayfix eval` and `wayfix trace`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wayfix.cli_policy import add_policy_options, open_policy
from wayfix.errors import InvalidOption, StorageFailed
from wayfix.exit_codes import EXIT_FOUND, EXIT_NO_ANSWER

if TYPE_CHECKING:
    from wayfix.agent.trace import Trace
    from wayfix.evaluation.queries import QuerySet
    from wayfix.evaluation.run import PolicyMaker
    from wayfix.evaluation.suite import Suite
    from wayfix.policy.interface import Policy

_TOOLS = {"zoom": "zoom_in", "landmark": "landmark_query", "oblique": "oblique_render"}
_LOCAL_POLICIES = ("baseline", "random", "oracle")
_CONDITIONS = ("clean", "missing", "noisy", "wrong")
_PAGE_QUERIES = 200

_EVAL_TEXT = """\
Searches every query of a suite with a policy and prints the papers' figures with 95 % intervals.

  wayfix eval --suite synth-v1 --policy baseline --n 500 --json run.json --html run.html
  wayfix eval --suite file --scene DIR --queries FILE --policy baseline
  wayfix eval compare before.json after.json

With --json every outcome is on disk at once, in FILE.partial: run a stopped command again and it goes on."""


def add_eval(commands: Any) -> None:
    """The command `wayfix eval`, and `wayfix eval compare`."""
    parser = commands.add_parser(
        "eval",
        help="measure how right a policy is",
        description=_EVAL_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--suite", default="synth-v1", choices=["synth-v1", "synth", "file"], help="default %(default)s"
    )
    parser.add_argument("--n", type=int, metavar="N", help="queries, spread over the suite's scenes (default: all)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of all that is random; of `synth`, also the first city (0)"
    )
    parser.add_argument("--scene", type=Path, metavar="DIR", help="for --suite file: the scene")
    parser.add_argument("--queries", type=Path, metavar="FILE", help="for --suite file: GeoJSON queries with boxes")
    parser.add_argument("--workflow", default="free", choices=["free", "fixed"], help="fixed: landmark, zoom, oblique")
    parser.add_argument("--turns", type=int, default=8, metavar="T", help="turns of a search (default: %(default)s)")
    parser.add_argument("--tools", default="zoom,landmark,oblique", help="those offered, or none (%(default)s)")
    parser.add_argument(
        "--landmarks",
        metavar="LIST",
        help=f"conditions among {','.join(_CONDITIONS)} (default: all; of a remote policy, clean)",
    )
    parser.add_argument("--budget", metavar="TIME", help="time allowed per query, such as 3s (default: no limit)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="queries at the same time (1)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the generated cities here between runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and outcome")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write every figure, without single outcomes")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with tables, curves and pictures")
    parser.add_argument(
        "--html-queries",
        type=int,
        default=_PAGE_QUERIES,
        metavar="N",
        help="with pictures, evenly chosen (%(default)s)",
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="write a trace per query, to replay or study")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_policy_options(parser, (*_LOCAL_POLICIES, "engine", "remote"))
    parser.set_defaults(run=_eval)
    actions = parser.add_subparsers(title="actions", metavar="")
    compared = actions.add_parser("compare", help="paired differences between two runs on the same queries")
    compared.add_argument("before", type=Path, metavar="A", help="report of wayfix eval --json")
    compared.add_argument("after", type=Path, metavar="B", help="the other report")
    compared.add_argument("--json", action="store_true", help="print JSON")
    compared.set_defaults(run=_compare)


def add_trace(commands: Any) -> None:
    """The commands `wayfix trace show|replay`."""
    trace = commands.add_parser("trace", help="look at a recorded search, or run it again")
    trace.set_defaults(help_of=trace)
    actions = trace.add_subparsers(title="actions", metavar="ACTION")
    show = actions.add_parser("show", help="every turn of a search: what was thought, called and answered")
    show.add_argument("trace", type=Path, help="file of wayfix ground --trace or wayfix eval --traces")
    show.add_argument("--scene", type=Path, metavar="DIR", help="with --picture: the scene it was recorded on")
    show.add_argument("--picture", type=Path, metavar="PNG", help="draw every view, as wayfix ground --show does")
    show.add_argument("--json", action="store_true", help="print the trace itself")
    show.set_defaults(run=_trace_show)
    replayed = actions.add_parser(
        "replay", help="search again as recorded, without the policy, and compare the result; exit 1 if it differs"
    )
    replayed.add_argument("trace", type=Path, help="file of wayfix ground --trace or wayfix eval --traces")
    replayed.add_argument("--scene", type=Path, required=True, metavar="DIR", help="the scene it was recorded on")
    replayed.add_argument("--json", action="store_true", help="print JSON")
    replayed.set_defaults(run=_trace_replay)


def _eval(options: argparse.Namespace) -> int:
    from wayfix.cli import parse_budget
    from wayfix.evaluation.run import EvalOptions, Evaluation
    from wayfix.evaluation.tables import print_report
    from wayfix.html import check_path

    for path in filter(None, (options.json, options.summary, options.html)):
        check_path(path)
    with _policy_maker(options) as (make_policy, detail):
        wanted = EvalOptions(
            policy=options.policy,
            policy_detail=detail,
            seed=_at_least("--seed", options.seed, 0),
            workflow=options.workflow,
            turns=_at_least("--turns", options.turns, 1),
            tools=_tools(options.tools),
            conditions=_conditions(options),
            budget_s=parse_budget(options.budget),
            workers=_at_least("--workers", options.workers, 1),
            pictures=_at_least("--html-queries", options.html_queries, 0) if options.html else 0,
            data=options.data,
            traces=options.traces,
            quiet=options.quiet,
        )
        journal = options.json.with_name(options.json.name + ".partial") if options.json else None
        evaluation = Evaluation(_suite(options), make_policy, wanted, journal)
        report, trajectories = evaluation.run()
    try:
        if options.json:
            report.save(options.json)
        if options.summary:
            options.summary.write_text(json.dumps(report.summary(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        kept = f"; the outcomes are in {journal}" if journal else ""
        raise StorageFailed(f"cannot write the report: {error}{kept}") from error
    if options.html:
        from wayfix.evaluation.page.page import write_page

        write_page(report, trajectories, options.html)
    evaluation.journal.remove()
    print_report(report)
    return EXIT_FOUND


@contextmanager
def _policy_maker(options: argparse.Namespace) -> Iterator[tuple[PolicyMaker, str]]:
    """What makes the policy for a scene, and what a report says of it."""
    from wayfix.policy.random import RandomPolicy

    if options.policy == "random":
        yield lambda _: RandomPolicy(options.seed), ""
    elif options.policy == "oracle":
        yield _oracle, ""
    else:
        with open_policy(options) as (policy, detail):
            yield lambda _: policy, detail


def _oracle(queries: QuerySet) -> Policy:
    from wayfix.policy.oracle import OraclePolicy

    return OraclePolicy({case.query: case.box for case in queries.cases})


def _suite(options: argparse.Namespace) -> Suite:
    from wayfix.evaluation import suite

    if options.n is not None:
        _at_least("--n", options.n, 1)
    if options.suite == "file":
        if options.scene is None:
            raise InvalidOption("--suite file needs --scene DIR, and --queries FILE unless the scene holds queries")
        return suite.from_file(options.scene, options.queries, options.n)
    if options.scene is not None or options.queries is not None:
        raise InvalidOption(f"--scene and --queries belong to --suite file, not to {options.suite}")
    return suite.synth_v1(options.n) if options.suite == "synth-v1" else suite.synth(options.seed, options.n)


def _tools(text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == ["none"]:
        return ()
    unknown = [name for name in names if name not in _TOOLS and name not in _TOOLS.values()]
    if unknown or not names:
        raise InvalidOption(f"--tools is a list of {', '.join(_TOOLS)}, or none; got {text!r}")
    return tuple(_TOOLS.get(name, name) for name in names)


def _conditions(options: argparse.Namespace) -> tuple[str, ...]:
    if options.landmarks is None:
        return _CONDITIONS if options.policy in _LOCAL_POLICIES else ("clean",)
    names = tuple(part.strip() for part in options.landmarks.split(","))
    if names == ("all",):
        return _CONDITIONS
    if any(name not in _CONDITIONS for name in names) or len(set(names)) < len(names):
        raise InvalidOption(f"--landmarks is a list of {', '.join(_CONDITIONS)}, or all; got {options.landmarks!r}")
    return tuple(name for name in _CONDITIONS if name in names)


def _at_least(option: str, value: int, least: int) -> int:
    if value < least:
        raise InvalidOption(f"{option} is at least {least}, got {value}")
    return value


def _compare(options: argparse.Namespace) -> int:
    from wayfix.evaluation.compare import compare, print_comparison
    from wayfix.evaluation.report import EvalReport

    found = compare(EvalReport.load(options.before), EvalReport.load(options.after))
    if options.json:
        print(found.model_dump_json())
    else:
        print_comparison(found)
    return EXIT_FOUND


def _trace_show(options: argparse.Namespace) -> int:
    from wayfix.agent.loop import replay
    from wayfix.agent.trace import Trace
    from wayfix.cli import check_picture_path, save_picture

    trace = Trace.load(options.trace)
    if options.picture:
        from wayfix.agent.draw import draw_episode
        from wayfix.scene.scene import Scene

        if options.scene is None:
            raise InvalidOption("--picture needs --scene DIR: a trace holds no images")
        check_picture_path(options.picture)
        with Scene(options.scene) as scene:
            save_picture(options.picture, draw_episode(*replay(scene, trace)))
    if options.json:
        print(trace.model_dump_json())
    else:
        print(_told(trace))
    return EXIT_FOUND


def _told(trace: Trace) -> str:
    """A trace as a person reads it."""
    order = f", workflow {' > '.join(trace.workflow)}" if trace.workflow else ""
    lines = [trace.query, f"  scene {trace.scene}, revision {trace.revision}; policy {trace.policy}; "]
    lines[-1] += f"at most {trace.max_turns} turns{order}"
    for number, turn in enumerate(trace.turns, 1):
        tokens = "" if turn.completion_tokens is None else f", {turn.completion_tokens} tokens"
        lines.append(
            f"\n  turn {number}: {turn.action}  (policy {turn.policy_ms:.0f} ms, tool {turn.tool_ms:.0f} ms{tokens})"
        )
        lines += [f"    > {line}" for line in turn.text.splitlines()]
        if turn.result is not None:
            lines.append(f"    < {_shortened(json.dumps(turn.result, ensure_ascii=False))}")
        view = next((v for v in trace.views if v.id == turn.view_id), None)
        if view is not None:
            x0, y0, x1, y1 = view.region
            seen = f", seen from the {view.direction}" if view.direction else ""
            size = f"{view.size_px[0]} x {view.size_px[1]} px"
            lines.append(f"    = view {view.id}: {x1 - x0:.0f} x {y1 - y0:.0f} m, {size}{seen}")
    box = "no box" if trace.box is None else "box " + ", ".join(f"{v:.2f}" for v in trace.box)
    lines.append(f"\n  {trace.code}: {trace.message}; {box}")
    return "\n".join(lines)


def _shortened(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"


def _trace_replay(options: argparse.Namespace) -> int:
    from wayfix.agent.loop import replay
    from wayfix.agent.trace import Trace
    from wayfix.scene.scene import Scene

    recorded = Trace.load(options.trace)
    with Scene(options.scene) as scene:
        if scene.id != recorded.scene:
            raise InvalidOption(
                f"the trace was recorded on the scene {recorded.scene!r}, {options.scene} is {scene.id!r}"
            )
        _, _, again = replay(scene, recorded)
    same = (recorded.code, recorded.box, recorded.views) == (again.code, again.box, again.views)
    if options.json:
        print(json.dumps({"same": same, "recorded": _end(recorded), "replayed": _end(again)}))
    else:
        print(f"{recorded.query}\n  recorded  {_end(recorded)}\n  replayed  {_end(again)}")
        print("  the same result" if same else "  another result: the scene or this version of Wayfix differs")
    return EXIT_FOUND if same else EXIT_NO_ANSWER


def _end(trace: Trace) -> dict[str, Any]:
    return {"code": trace.code, "box": trace.box, "views": len(trace.views), "revision": trace.revision}
