"""Runs: a search that ended at any place goes on to the result that it would have had, and nothing is corrupted."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from idle_search import IdleSearch
from kept_searches import SEARCHES, SMALL, journals, with_run

from topoplan import Candidate, Host, PlacedStrategy, Searcher, State, TopoplanError
from topoplan.errors import TopoplanWarning, shown
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.host_models import at_machine
from topoplan_engine.search.journal import Journal, parsed
from topoplan_engine.search.limits import with_patience
from topoplan_engine.search.run_record import checksum_of, experiment_from_record, run_record
from topoplan_engine.search.runs import begun, resumed

HOST = Host.discover()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a function that runs a search once; it returns its folder and its outcome."""
    runs = {}

    def run(name):
        if name not in runs:
            path = tmp_path_factory.mktemp("run") / name
            with begun(path, HOST, SEARCHES[name]) as folder:
                runs[name] = path, optimize(folder.experiment, host=HOST, folder=folder)
        return runs[name]

    return run


def torn(path, into, share):
    """Copy a run whose process died when each of its journals had this share of its bytes."""
    shutil.copytree(path, into)
    for journal in into.glob("prices-*.csv"):
        os.truncate(journal, int(journal.stat().st_size * share))
    return into


def go_on(path):
    with resumed(path, HOST) as folder:
        return optimize(folder.experiment, host=HOST, folder=folder)


def check_equal(path, outcome, other_path, other):
    assert (path / "best.json").read_bytes() == (other_path / "best.json").read_bytes()
    assert outcome.result.history[:, ::2].tolist() == other.result.history[:, ::2].tolist()
    assert outcome.result.evaluations == other.result.evaluations
    assert outcome.result.ended_by == other.result.ended_by
    assert outcome.seconds == other.seconds
    assert journals(path) == journals(other_path)


#: In every run of the tests; the others are slow.
QUICK = {"mcmc", "network", "machine"}
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SEARCHES]
SHARES = [0.37, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.0, 0.8, 1.0))]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_search_that_is_kept_is_the_search_that_is_not(finished, name):
    path, outcome = finished(name)
    plain = optimize(SEARCHES[name], host=HOST)
    assert outcome.result.history[:, ::2].tolist() == plain.result.history[:, ::2].tolist()
    assert outcome.seconds == plain.seconds
    prices = sum(entry.event == "price" for entries in journals(path).values() for entry in entries)
    assert prices <= outcome.result.evaluations < prices + 3  # where it starts may be chosen by prices, too


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", NAMES)
def test_a_search_that_ended_anywhere_goes_on_to_the_same_result(finished, tmp_path, name, share):
    path, outcome = finished(name)
    copy = torn(path, tmp_path / "copy", share)
    check_equal(copy, go_on(copy), path, outcome)


class _Misplacing(IdleSearch):
    """Proposes a good candidate, and then a strategy of too few placements."""

    def ask(self):
        short = PlacedStrategy(self.state.strategy.placements[:3])
        return [Candidate(base=self.state), Candidate(base=State(short, self.state.fabric))]


@attrs.frozen(kw_only=True)
class Misplacing(Searcher):
    """Proposes a wrong strategy."""

    name = "misplacing"
    axis = "strategy"

    def build(self, problem, rng):
        return _Misplacing()


@pytest.mark.filterwarnings("ignore:searcher 'misplacing'")
def test_a_searcher_whose_whole_strategy_is_wrong_leaves_the_others_to_search_and_to_go_on(tmp_path):
    host, whole = Host.discover(), tmp_path / "whole"
    host.add(Misplacing)
    experiment = attrs.evolve(with_run(SMALL, budget=10), searchers=("misplacing", "mcmc"))
    with pytest.warns(TopoplanWarning, match=r"^searcher 'misplacing'.* a strategy of 3 placements .*; the other"):
        plain = optimize(experiment, host=host)
    with begun(whole, host, experiment) as folder:
        kept = optimize(folder.experiment, host=host, folder=folder)
    for share in (0.0, 0.3, 0.6, 1.0):
        copy = torn(whole, tmp_path / str(share), share)
        with resumed(copy, host) as folder:
            check_equal(copy, optimize(folder.experiment, host=host, folder=folder), whole, kept)
    (entries,) = journals(whole).values()
    events = [entry.event for entry in entries if entry.event != "moved"]
    # Where it starts, the first candidate, the second one; and eight of the other searcher.
    assert events == ["price", "price", "failed", *["price"] * 8]
    assert plain.result.evaluations == kept.result.evaluations == 10
    assert plain.result.history[:, ::2].tolist() == kept.result.history[:, ::2].tolist()


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_search_may_end_at_every_byte_again_and_again(finished, tmp_path_factory, data):
    path, outcome = finished("mcmc")
    copy = tmp_path_factory.mktemp("torn") / "copy"
    shutil.copytree(path, copy)
    size = (copy / "prices-0-0.csv").stat().st_size
    os.truncate(copy / "prices-0-0.csv", data.draw(st.integers(0, size)))
    check_equal(copy, go_on(copy), path, outcome)


def test_a_journal_may_end_at_every_byte(tmp_path):
    whole = tmp_path / "whole.csv"
    journal = Journal(whole)
    for number in range(6):
        journal.price(1 / (number + 3), float("inf"), True, f"{number:08x}", number * 0.5)
        journal.move(1 / (number + 3), f"{number:08x}", number * 0.5)
    journal.fail(3.5)
    assert journal.ending() is None
    journal.end("time limit", 4.0)
    journal.finish(4.5)
    journal.close()
    data = whole.read_bytes()
    entries = parsed(data, whole)
    assert [entry.event for entry in entries] == ["price", "moved"] * 6 + ["failed", "time limit", "done"]
    path = tmp_path / "torn.csv"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        journal, known = Journal(path), 0
        for event, cost, cutoff, fits, state, seconds in entries:
            known += journal.replaying
            if event == "price":
                if (entry := journal.recall()) is None:
                    journal.price(cost, cutoff, fits, state, seconds)
                else:
                    assert entry == entries[known - 1]
            elif event == "failed":
                assert journal.recall() is None
                journal.fail(seconds)
            elif event == "moved":
                journal.move(cost, state, seconds)
            elif event == "done":
                journal.finish(seconds)
            elif journal.ending() is None:
                journal.end(event, seconds)
        journal.close()
        assert known == max(data[:size].count(b"\n") - 1, 0)
        assert path.read_bytes() == data


@pytest.fixture
def journal(finished, tmp_path):
    """Return a copy of a run, and its journal."""
    path, _ = finished("mcmc")
    shutil.copytree(path, tmp_path / "copy")
    return tmp_path / "copy", tmp_path / "copy" / "prices-0-0.csv"


@pytest.mark.parametrize("damage", ["flip", "lost", "moved", "binary", "header"])
def test_a_damaged_journal_is_refused_and_left_alone(journal, damage):
    copy, path = journal
    lines = path.read_bytes().split(b"\n")
    if damage == "flip":
        lines[9] = lines[9].replace(b"0", b"1", 1)
    elif damage == "lost":
        del lines[9]
    elif damage == "moved":
        lines[9], lines[11] = lines[11], lines[9]
    elif damage == "binary":
        lines[9] = os.urandom(40).replace(b"\n", b"")
    else:
        lines[0] = b"a,b"
    path.write_bytes(b"\n".join(lines))
    before = path.read_bytes()
    with pytest.raises(TopoplanError, match=r"prices-0-0.csv: (line \d+: is damaged|is no journal)") as error:
        go_on(copy)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_a_search_that_asks_for_something_else_is_refused(journal):
    copy, _ = journal
    record = json.loads((copy / "run.json").read_text())
    record["experiment"]["run"]["seed"] = 4
    record["checksum"] = checksum_of(record)
    (copy / "run.json").write_text(json.dumps(record))
    with pytest.raises(TopoplanError, match=r"line \d+: the search asks for something else than it did"):
        go_on(copy)


@pytest.mark.parametrize(("key", "value"), [("budget", 50), ("seed", 4), ("patience", 0.5)])
def test_a_record_that_was_edited_is_refused(journal, key, value):
    """A budget of its own would be resumed without a word, beside the answers of another search."""
    copy, _ = journal
    record = json.loads((copy / "run.json").read_text())
    assert checksum_of(record) == record["checksum"]
    record["experiment"]["run"][key] = value
    (copy / "run.json").write_text(json.dumps(record))
    with pytest.raises(TopoplanError, match=r"run.json: checksum: '[0-9a-f.  ]+' is not that of the file, .*edited"):
        resumed(copy, HOST)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format_version", 2, r"run.json: is no run that this version knows \(expected format 'topoplan run'"),
        ("versions", {}, r"run.json: the run was made with no 'numba', here is "),
        ("versions", 3, r"run.json: versions, inputs: are no tables"),
        ("inputs", {"gone.json": "00"}, r"run.json: input 'gone.json': cannot be read \(No such file"),
        ("experiment", {}, r"run.json: experiment: is not what a run wrote \(KeyError: 'model'\)"),
        ("experiment", [], r"run.json: experiment: is not what a run wrote"),
    ],
)
def test_a_run_that_would_be_another_one_here_is_refused(journal, key, value, message):
    copy, _ = journal
    record = json.loads((copy / "run.json").read_text())
    record[key] = value
    (copy / "run.json").write_text(json.dumps(record))
    with pytest.raises(TopoplanError, match=message) as error:
        resumed(copy, HOST)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("output", ["plan.json", ["json", "plan.json", 1], [], 3])
def test_an_output_that_no_run_wrote_is_named(journal, output):
    copy, _ = journal
    record = json.loads((copy / "run.json").read_text())
    record["experiment"]["outputs"] = [output]
    (copy / "run.json").write_text(json.dumps(record))
    with pytest.raises(TopoplanError, match=r"run.json: experiment: .*outputs: .* is no exporter with a path"):
        resumed(copy, HOST)


def test_an_input_that_changed_is_refused(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    words = ["optimize", "alexnet", "--servers", "4", "--batch-size", "64", "--budget", "3", "-s", "mcmc"]
    assert run(*words, "-x", "strategy=a.strategy")[0] == 0
    assert run(*words, "--strategy", "a.strategy", "--run", "a")[0] == 0
    Path("a.strategy").write_text(Path("a.strategy").read_text() + "\n")
    status, out, err = run("resume", "a")
    assert (status, out) == (2, "")
    assert err == (
        "error: a/run.json: input 'a.strategy' has changed since the run began (restore it, or begin a new run)\n"
    )


@pytest.mark.parametrize(("there", "why"), [(False, "No such file or directory"), (True, "is no regular file")])
def test_an_input_that_is_gone_is_named(tmp_path, there, why, run):
    path = tmp_path / "model.toml"
    shutil.copy(Path(__file__).parents[1] / "examples" / "models" / "transformer.toml", path)
    with begun(tmp_path / "a", HOST, attrs.evolve(SMALL, model=Choice("layers", {"file": str(path)}))):
        path.unlink()
        if there:
            os.mkfifo(path)
    status, out, err = run("resume", str(tmp_path / "a"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"input {shown(str(path))}: cannot be read ({why}; the run was begun in " in err


@pytest.mark.parametrize(
    ("key", "value"),
    [("title", "\ud800"), ("rows", [["a", 1]]), ("rows", [["a"]]), ("notes", [1]), ("status", "1"), ("json", [])],
)
def test_a_result_that_no_run_wrote_is_refused(journal, key, value, run):
    copy, _ = journal
    document = {"title": "t", "rows": [["a", "b"]], "details": [], "notes": [], "status": 0, "json": {}} | {key: value}
    (copy / "result.json").write_text(json.dumps(document))
    status, out, err = run("resume", str(copy))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"result.json: {key!r} is not what a run wrote (" in err


@pytest.mark.slow
def test_two_processes_do_not_work_on_one_run(journal, run):
    copy, _ = journal
    with resumed(copy, HOST):
        status, out, err = run("resume", str(copy))
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {copy}: 'process {os.getpid()} on ")
    assert go_on(copy).result.evaluations == 61


@pytest.mark.parametrize("content", ["a", "run.json", None])
def test_a_folder_that_holds_something_is_not_overwritten(tmp_path, content, run):
    path = tmp_path / "a"
    if content is None:
        path.write_text("file")
    else:
        path.mkdir()
        (path / content).write_text("{}")
    status, out, err = run("optimize", "alexnet", "--servers", "4", "--batch-size", "64", "--run", str(path))
    assert (status, out) == (2, "")
    assert err.startswith(f"error: --run {path}: ")
    assert err.count("\n") == 1
    assert path.read_text() == "file" if content is None else (path / content).read_text() == "{}"


@pytest.mark.parametrize("words", [["--budget", "x"], ["-s", "unheard"], ["--servers", "0"], ["-x", "json=/nowhere/a"]])
def test_a_run_that_cannot_begin_makes_no_folder(tmp_path, words, run):
    assert run("optimize", "alexnet", "--run", str(tmp_path / "a"), *words)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_component_of_this_process_cannot_be_resumed(tmp_path):
    members = {"__doc__": "s", "name": "still", "axis": "strategy", "build": lambda *_: IdleSearch()}
    own = type(Searcher)("Own", (Searcher,), {"__module__": __name__, **members})
    with pytest.raises(TopoplanError, match="'still' is a component of this process"):
        begun(tmp_path / "a", HOST, attrs.evolve(SMALL, searchers=[own]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_finished_run_is_printed_again(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    words = ["optimize", "alexnet", "--servers", "4", "--batch-size", "64", "--budget", "9", "-x", "json=plan.json"]
    first = run(*words, "--run", "a")
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").unlink()
    assert run("resume", "a") == first
    assert json.loads(Path("plan.json").read_text()) == plan
    assert json.loads(run("resume", "a", "--json")[1])["evaluations"] == 10
    Path("a/result.json").write_text("{}")
    status, out, err = run("resume", "a")
    assert (status, out) == (2, "")
    assert err == "error: a/result.json: 'title' is not what a run wrote (missing, expected a text)\n"


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 2])
def test_a_search_that_a_clock_ended_is_repeated_as_it_was(tmp_path, monkeypatch, chains):
    """The clock goes on by a hundredth of a second whenever it is read: the load of the machine has no part in it."""
    path, copy = tmp_path / "a", tmp_path / "b"
    timed = with_run(SMALL, time_limit=10.0, budget=10**9, chains=chains)
    reads = itertools.count()
    with monkeypatch.context() as patch, begun(path, HOST, timed) as folder:
        for module in ("driver", "ends", "evaluator", "islands", "optimize"):
            patch.setattr(f"topoplan_engine.search.{module}.clock", lambda: 0.01 * next(reads))
        outcome = optimize(timed, host=HOST, folder=folder)
    assert outcome.result.ended_by == "time limit"
    assert outcome.result.evaluations > 20
    shutil.copytree(path, copy)
    check_equal(copy, go_on(copy), path, outcome)


@pytest.mark.slow
def test_what_cannot_be_written_ends_in_one_line_and_goes_on_later(finished, tmp_path, monkeypatch):
    path, outcome = finished("mcmc")
    copy = torn(path, tmp_path / "copy", 0.3)
    write = os.write

    def full(file, data):
        write(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("topoplan_engine.search.journal._WRITE_EVERY", 0.0)
        with resumed(copy, HOST) as folder:
            patch.setattr("topoplan_engine.search.journal.os.write", full)
            with pytest.raises(TopoplanError, match=r"No space left on device.* goes on$"):
                optimize(folder.experiment, host=HOST, folder=folder)
    check_equal(copy, go_on(copy), path, outcome)


@pytest.mark.parametrize("run", [RunOptions(), RunOptions(budget=1000), RunOptions(patience=0.2)])
def test_what_users_left_open_stays_open_in_a_record(run):
    """A machine says what users do not, and a default budget ends a search by patience: both hold after the end."""
    said = Experiment(model="alexnet", cluster=ClusterOptions(machine="dgx-h100", servers=2), run=run)
    read = experiment_from_record(json.loads(json.dumps(run_record(HOST, said))), "run.json")
    assert read == said
    assert type(read.run.budget) is type(said.run.budget)
    assert with_patience(read) == with_patience(said)
    patient = with_patience(said).run.patience
    recorded = json.loads(json.dumps(run_record(HOST, with_patience(said))))
    assert type(with_patience(experiment_from_record(recorded, "run.json")).run.patience) is type(patient)
    assert at_machine(read.cluster, HOST) == at_machine(said.cluster, HOST)
