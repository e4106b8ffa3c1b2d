"""Run every study under experiments/ and write tables, plots and tests of hypotheses into pages of docs/.

    .venv/bin/python experiments/results.py
    .venv/bin/python experiments/results.py --jobs 8 degree all-to-all
    .venv/bin/python experiments/results.py --page results --sample /tmp/sample.md

The last one runs one model of each study but `UNSAMPLED` in one setting, for `tools/pages.py`.  `PAGES` says which
study goes where.

Every file there begins with the command that prints its tables.  Finished runs of `topoplan compare` are stored, so
that what was interrupted goes on when it is started again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from pathlib import Path

import attrs

from topoplan import Host
from topoplan.cli import main as topoplan
from topoplan_engine.executors import executor_from
from topoplan_engine.files import read_file, write_file
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.tomlfiles import read_toml
from topoplan_studies.command import run_study
from topoplan_studies.page import section
from topoplan_studies.study import study_from

ROOT = Path(__file__).resolve().parents[1]
PAGE, HIDUP = Path("docs/results.md"), Path("docs/hidup.md")
#: Page -> its sections, in the order of the publication.
PAGES = {
    PAGE: ("dedicated-d4", "dedicated-d8", "all-to-all", "degree", "shared-cluster"),
    HIDUP: (
        "hidup-figure-7",
        "hidup-figure-8",
        "hidup-figure-9",
        "hidup-figure-10",
        "hidup-table-3",
        "hidup-table-3-one-machine",
        "hidup-memory",
    ),
}
#: Studies of which no sample is made: jobs that share a cluster are no comparison of networks one by one.
UNSAMPLED = ("shared-cluster",)
STUDIES = tuple(study for studies in PAGES.values() for study in studies)

HEAD = """# Networks compared, study by study

TopoOpt (Wang et al., NSDI 2023) compares networks for training by simulation.  This page repeats the comparisons that
Topoplan covers.  For each hypothesis on the order of two networks it shows where the hypothesis holds, where it does
not, and why.  One command writes the whole page, and each section shows its own command:

    .venv/bin/python experiments/results.py

- Each network has its own search, with the same number of candidates and the same seed.  The numbers are small here, so
  that the page can be made anew in a night.  More candidates shorten all times, but not equally on all networks.
  `topoplan compare FILE --budget N --seeds 1,2,3 --interface-bandwidth-gbps 10,25,40,100,200` runs more; if the times
  of the seeds of a row differ much, the search has not converged.
- NCF, the sixth model of the publication, is left out: on 128 servers that are wired to each other, a simulation of
  its all-to-alls takes a third of a second or more, and each of its places as long as those of all other models.
- *Of equal cost*: the bandwidth at which the network costs as much as TopoOpt's.  The prices are
  `libs/studies/src/topoplan_studies/prices/default.toml` unless `--prices` names others; hypotheses at
  equal cost depend on them.
- *lower bound*: of the plan on its network.  *any wiring*: of the plan's strategy on every direct-connect fabric of
  these interfaces.  *tax*: bytes that hosts send for each byte asked.
- All networks use all interfaces of a host; a fat-tree of equal cost has one for each host, as fast as the money buys.
"""


HIDUP_HEAD = """# HiDup's evaluation, figure by figure

HiDup (Zhang et al., SoCC 2022) compares its planner with DeepSpeed-MoE, FastMoE, Horovod and PyTorch DDP on V100 GPUs.
This page simulates the same strategies on a model of the same clusters, beside the published times. One command writes
it, and each section shows its own command:

    .venv/bin/python experiments/results.py --page hidup

- *HiDup* is the searcher `hidup`; the others are rules of the
  [searcher `baseline`](../plugins/searchers/baseline/README.md).
- Operators take HiDup's annotated FLOPs over the rate of HiDup's released profile
  ([calibration](../plugins/estimators/hidup/README.md)); nothing else is fitted. All systems have the same operator
  times. So kernels do not differ: DeepSpeed and FastMoE are one strategy here, and what their kernels gain or lose is
  in the error.
- Hosts have 200 Gbps between two GPUs (section 6.3), 9.71 Gbps between hosts in figure 7 (section 6.1), and what the
  section says elsewhere.
- Numbers of figures are those of HiDup's artefact; each section names the printed one. Published times of figures were
  read from the vector graphics of the authors' copy of the paper (`ylxdzsw.github.io` at 3e0807df,
  `posts/22/2022-11-socc-slides/paper.pdf`, SHA-256 90eb93c4f163…0514c), to about 1 ms; those of table III are copied.
- Brackets hold the published time and our error. `out of memory` is the publication's word. Memory accounting does not
  reproduce it for DDP on 8 GPUs ([why](../plugins/searchers/baseline/README.md)).
- FastMoE as HiDup ran it sums no gradients: the artefact never calls `allreduce_params`, and its traces of FastMoE have
  no all-reduce of gradients. The rule here sums them.

What the sections show:

- Communication times of HiDup and DeepSpeed come close to the published ones on two machines, and so does the order of
  systems there (table III, figure 9). Overlap is higher here: streams do not wait for each other between stages, and
  collectives take nothing from operators.
- Published times fall less with bandwidth than the bytes allow (figure 9): something else than the link limits the
  published systems at 35 Gbps. Here it is the link.
- With 32 and 64 GPUs on eight hosts, the bytes alone take longer at 9.71 Gbps than the published iterations (figure 7;
  each section counts such rows). Either more than the measured 9.71 Gbps was available to NCCL, or less was sent.
- With small batches HiDup is slower than the others in print, and not here (figure 10): operators of half a batch run
  at half the time in the cost model, and slower on a GPU, as the publication says.
- Memory is less than the published peaks for BERT and close to them for ViT. Replicated experts (DDP, Horovod) need
  the most, as published. Peaks there hold temporary tensors of kernels, and DDP's second copy of the gradients.
- One rule for DeepSpeed and FastMoE cannot be right for both: in print, FastMoE computes less and communicates more.
"""


def head(page: Path) -> str:
    """Return what stands above the studies."""
    if page.name == HIDUP.name:
        return HIDUP_HEAD
    pipelines = page.with_name("pipelines.md")
    return f"{HEAD}\nPipelines have [a page of their own]({pipelines.name}).\n" if pipelines.exists() else HEAD


def command(path: Path) -> list[str]:
    """Return the words after ``topoplan`` in the first line of an experiment."""
    return shlex.split(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "))[1:]


def write(path: Path, page: Path, jobs: int) -> None:
    """Run an experiment, which writes its section into a page and its picture beside; leave if it fails."""
    words = [*command(path), "--write", str(page)]
    try:
        topoplan([*words, "--jobs", str(jobs)] if words[0] == "compare" else words)
    except SystemExit as ended:
        if ended.code:
            raise


def sample(study: str, host: Host) -> str:
    """Run the last model of a study in its first setting; return what the section would have of it.

    Published values are of all settings, so that these are run where there are some.
    """
    path = ROOT / "experiments" / f"{study}.toml"
    whole = study_from(read_toml(path), study, str(path))
    first = {option: values[:1] for option, values in whole.vary.items()}
    published = tuple(values for values in whole.published if values.model == whole.models[-1].name)
    vary = whole.vary if whole.published else first
    part = attrs.evolve(whole, models=whole.models[-1:], vary=vary, published=published)
    with tempfile.TemporaryDirectory() as runs:
        report = run_study(
            part,
            host,
            prices=None,
            catalogue=False,
            measures=None,
            runs=Path(runs),
            executor=executor_from("processes", 1),
        )
    return section(report, shlex.join(command(path)), "")


def page_of(study: str) -> Path:
    """Return the page of a study."""
    return next(page for page, studies in PAGES.items() if study in studies)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}; all unless given")
    parser.add_argument("--page", choices=[page.stem for page in PAGES], help="all studies of a page")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="write all into this page instead")
    parser.add_argument("--sample", type=Path, metavar="FILE.md", help="write a few rows of each study into this file")
    arguments = parser.parse_args()
    for study in arguments.studies:
        if study not in STUDIES:
            parser.error(f"no study {study!r} (have: {', '.join(STUDIES)})")
    chosen = [study for study in STUDIES if arguments.page in (None, page_of(study).stem)]
    instead = arguments.write.absolute() if arguments.write else None
    os.chdir(ROOT)  # paths in the commands begin there
    if arguments.sample:
        names = [study for study in arguments.studies or chosen if study not in UNSAMPLED]
        write_file(arguments.sample, "\n".join(sample(study, Host.discover()) for study in names).encode())
        return
    for study in arguments.studies or chosen:
        page = instead or (ROOT / page_of(study)).absolute()
        text = read_file(page).decode() if page.exists() else ""
        write_file(page, replace_section(text, "head", head(page), str(page)).encode())
        print(study, flush=True)
        write(ROOT / "experiments" / f"{study}.toml", page, arguments.jobs)


if __name__ == "__main__":
    main()
