"""nccl-tests' tables: read, checked, and fitted back to the numbers that made them."""

import math

import pytest
from machine_reports import SIZES, nccl_table, published

from hardware_profiles.detect.nccl_tests import parse_nccl_tests
from hardware_profiles.detect.rates import fit_rate, network_hops
from hardware_profiles.detect.report import Report

TABLE = nccl_table("all_gather", nodes=1, per_node=8, rate=360e9, one_way=30e-6)


@pytest.mark.parametrize(
    ("file", "collective", "ranks", "nodes", "points", "device"),
    [
        ("all_reduce_1x8_h100-sxm.txt", "all_reduce", 8, 1, 12, "NVIDIA H100 80GB HBM3"),
        ("all_reduce_2x8_h100-sxm_prefixed.txt", "all_reduce", 16, 2, 22, "NVIDIA H100 80GB HBM3"),
        ("all_reduce_2x8_a100-sxm-40gb.txt", "all_reduce", 16, 2, 62, "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_published_runs(file: str, collective: str, ranks: int, nodes: int, points: int, device: str) -> None:
    (run,), notes = parse_nccl_tests(published(f"nccl_tests/{file}"))
    assert (run.collective, run.num_ranks, run.num_nodes, len(run.points)) == (collective, ranks, nodes, points)
    assert run.device_names == (device,)
    assert notes == ()


def test_times_are_those_of_both_columns() -> None:
    (run,), _ = parse_nccl_tests(published("nccl_tests/all_reduce_1x8_h100-sxm.txt"))
    assert [point.seconds for point in run.points[:2]] == pytest.approx([613.3e-6, 614.3e-6])
    assert {point.size_bytes for point in run.points[:2]} == {134217728}


def test_a_fitted_rate_is_the_printed_bus_bandwidth() -> None:
    # The last rows print 473.60 and 476.53 GB/s; a line through all sizes gives the rate without latency.
    (run,), _ = parse_nccl_tests(published("nccl_tests/all_reduce_1x8_h100-sxm.txt"))
    found = fit_rate([run])
    assert found is not None
    assert found.bytes_per_second == pytest.approx(475e9, rel=0.01)
    assert found.residual < 0.03


def test_a_run_that_failed_in_its_first_row_is_left_out_with_the_line() -> None:
    runs, notes = parse_nccl_tests(published("nccl_tests/alltoall_truncated.txt"))
    assert runs == ()
    said = [str(note) for note in notes]
    assert said[0] == (
        "alltoall_truncated.txt:15: the row of 2097152 bytes is cut off or mixed with other text; left out"
    )
    assert "the run was cut off (no line '# Out of bounds values')" in said[1]
    assert said[2].startswith("alltoall_truncated.txt:3: this run is left out: it has no usable row")


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"])
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (1, 2), (4, 8)])
def test_a_known_machine_is_recovered(name: str, nodes: int, per_node: int) -> None:
    rate, one_way = 90e9, 100e-6
    runs, notes = parse_nccl_tests(nccl_table(name, nodes=nodes, per_node=per_node, rate=rate, one_way=one_way))
    assert notes == ()
    found = fit_rate(runs)
    assert found is not None
    assert found.bytes_per_second == pytest.approx(rate, rel=2e-3)
    if name == "alltoall":  # many messages at once; what one of them waits for does not show
        assert found.one_way_seconds is None
    else:
        assert found.one_way_seconds == pytest.approx(one_way, rel=0.05)
    assert found.residual < 1e-3


def test_ring_collectives_are_preferred_and_fitted_together() -> None:
    reports = [
        nccl_table("all_reduce", nodes=1, per_node=8, rate=470e9, one_way=30e-6),
        nccl_table("all_gather", nodes=1, per_node=8, rate=360e9, one_way=30e-6),
        nccl_table("reduce_scatter", nodes=1, per_node=8, rate=360e9, one_way=30e-6),
    ]
    found = fit_rate([run for report in reports for run in parse_nccl_tests(report)[0]])
    assert found is not None
    assert found.collectives == ("all_gather", "reduce_scatter")
    assert found.ring
    assert found.bytes_per_second == pytest.approx(360e9, rel=2e-3)


@pytest.mark.parametrize(("name", "nodes", "hops"), [("all_gather", 8, 7), ("all_reduce", 8, 3), ("all_reduce", 6, 3)])
def test_hops_between_nodes_are_a_ring_s_or_a_tree_s(name: str, nodes: int, hops: int) -> None:
    runs, _ = parse_nccl_tests(nccl_table(name, nodes=nodes, per_node=2, rate=90e9, one_way=100e-6))
    found = fit_rate(runs)
    assert found is not None
    assert network_hops(found) == hops


def test_small_sizes_of_another_protocol_do_not_enter() -> None:
    report = nccl_table("all_gather", nodes=1, per_node=8, rate=360e9, one_way=30e-6, sizes=(1024, 65536, *SIZES))
    first = next(line for line in report.text.splitlines() if line.split()[:1] == ["1024"])
    changed = Report(report.name, report.text.replace(first, first.replace(first.split()[5], "9999.99")))
    for text in (report, changed):
        found = fit_rate(parse_nccl_tests(text)[0])
        assert found is not None
        assert found.bytes_per_second == pytest.approx(360e9, rel=2e-3)


def test_sizes_too_large_to_show_a_latency_give_none() -> None:
    report = nccl_table("all_gather", nodes=1, per_node=8, rate=10e9, one_way=1e-6, sizes=(2**30, 2**31, 2**32))
    found = fit_rate(parse_nccl_tests(report)[0])
    assert found is not None
    assert found.one_way_seconds is None
    assert found.bytes_per_second == pytest.approx(10e9, rel=1e-3)


def test_one_size_gives_a_rate_and_no_latency() -> None:
    report = nccl_table("all_gather", nodes=1, per_node=8, rate=360e9, one_way=0.0, sizes=(2**30,))
    found = fit_rate(parse_nccl_tests(report)[0])
    assert found is not None
    assert (found.one_way_seconds, found.num_points) == (None, 2)
    assert found.bytes_per_second == pytest.approx(360e9, rel=1e-3)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", " 0: ", "[0] ", "12: "])
def test_the_prefix_of_a_launcher_does_not_matter(prefix: str) -> None:
    text = "\n".join(prefix + line for line in TABLE.text.splitlines())
    assert parse_nccl_tests(Report(TABLE.name, text))[0] == parse_nccl_tests(TABLE)[0]


def test_lines_of_other_programs_between_are_ignored() -> None:
    noisy = TABLE.text.replace("#\n#  ", "host:1:2 [0] NCCL INFO Launch mode Parallel\nNCCL version 2.29\n#\n#  ")
    runs, notes = parse_nccl_tests(Report(TABLE.name, "mpirun ... all_reduce_perf -b 8\n" + noisy))
    assert runs[0].points == parse_nccl_tests(TABLE)[0][0].points
    assert runs[0].collective == "all_gather"
    assert notes == ()


def test_several_runs_in_one_file() -> None:
    other = nccl_table("all_reduce", nodes=2, per_node=8, rate=80e9, one_way=60e-6)
    runs, notes = parse_nccl_tests(Report("both.log", TABLE.text + "\n" + other.text))
    assert [(run.collective, run.num_nodes) for run in runs] == [("all_gather", 1), ("all_reduce", 2)]
    assert notes == ()


def test_the_columns_of_old_versions() -> None:
    """Before 2.12: no column of the root, an error instead of the count of wrong values, no group."""
    rows = [
        f"{size:12d} {size // 4:13d}   float     sum {size / 20e3:8.1f} {20.0:7.2f} {35.0:7.2f}  2e-07 "
        f"{size / 20e3:8.1f} {20.0:7.2f} {35.0:7.2f}    N/A"
        for size in SIZES
    ]
    text = "\n".join(
        [
            "# nThread 1 nGpus 8 minBytes 8388608 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",
            "#",
            "# Using devices",
            *(
                f"#   Rank {rank:2d} Pid  87569 on    seville device {rank:2d} [0x57] Tesla V100-SXM3-32GB"
                for rank in range(8)
            ),
            "#",
            "#                                                     out-of-place                       in-place",
            "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
            "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
            *rows,
            "# Out of bounds values : 0 OK",
        ]
    )
    (run,), notes = parse_nccl_tests(Report("out.log", text))
    assert (run.collective, run.num_ranks, run.device_names) == ("all_reduce", 8, ("Tesla V100-SXM3-32GB",))
    assert [str(note) for note in notes] == [
        "out.log:1: no program is named; by its bus bandwidth this is all_reduce_perf"
    ]
    found = fit_rate([run])
    assert found is not None
    assert found.bytes_per_second == pytest.approx(35e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "recognised"),
    [("all_reduce", "all_reduce"), ("all_gather", "all_gather"), ("reduce_scatter", "reduce_scatter")],
)
def test_a_run_without_a_name_is_known_by_its_bus_bandwidth(name: str, recognised: str) -> None:
    table = nccl_table(name, nodes=1, per_node=8, rate=360e9, one_way=30e-6)
    text = "\n".join(line for line in table.text.splitlines() if "Collective test" not in line)
    (run,), (note,) = parse_nccl_tests(Report("out.log", text))
    assert run.collective == recognised
    assert f"by its bus bandwidth this is {recognised}_perf" in str(note)


def replaced(old: str, new: str, count: int = -1) -> Report:
    assert old in TABLE.text
    return Report("all_gather.txt", TABLE.text.replace(old, new, count))


def row(size: int) -> str:
    return next(line for line in TABLE.text.splitlines() if line.split()[:1] == [str(size)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line[: len(line) // 2], "is cut off or mixed with other text; left out"),
        (lambda line: line.replace("       0 ", "      17 ", 1), "has 17 wrong values; left out"),
        (lambda line: " ".join([*line.split()[:5], "nan", *line.split()[6:]]), "has the time nan; needed a positive"),
        (lambda line: " ".join([*line.split()[:5], "-nan", *line.split()[6:]]), "has the time -nan"),
        (lambda line: " ".join([*line.split()[:5], "0.00", *line.split()[6:]]), "has the time 0.00"),
        (lambda line: " ".join([*line.split()[:5], "inf", *line.split()[6:]]), "has the time inf"),
        (lambda line: " ".join([*line.split()[:5], "1e-9", *line.split()[6:]]), "B/s; left out"),
    ],
)
def test_a_bad_row_is_told_by_line_and_the_others_used(change: object, said: str) -> None:
    assert callable(change)
    old = row(SIZES[2])
    report = replaced(old, change(old))
    (run,), notes = parse_nccl_tests(report)
    assert len(run.points) in (2 * len(SIZES) - 2, 2 * len(SIZES) - 1)
    assert all(math.isfinite(point.seconds) and point.seconds > 0 for point in run.points)
    assert said in str(notes[0])
    lines = report.text.splitlines()
    assert lines[notes[0].line - 1].split()[0] == str(SIZES[2])


def test_a_bus_bandwidth_that_is_not_available_costs_nothing() -> None:
    line = row(SIZES[2])
    cells = line.split()
    (run,), notes = parse_nccl_tests(replaced(line, " ".join([*cells[:7], "N/A", *cells[8:]])))
    assert (len(run.points), notes) == (2 * len(SIZES), ())


def test_numbers_of_thousands_of_digits_cost_their_own_line() -> None:
    """Python itself reads no whole number of more than 4,300 digits."""
    long = "9" * 5000
    (run,), notes = parse_nccl_tests(replaced(str(SIZES[2]), long, 1))
    assert len(run.points) == 2 * len(SIZES) - 2
    assert "the row has a size of 5000 digits" in str(notes[0])
    runs, notes = parse_nccl_tests(replaced("Out of bounds values : 0", f"Out of bounds values : {long}"))
    assert runs == ()
    assert "values were out of bounds" in str(notes[-1])
    runs, _ = parse_nccl_tests(replaced("#  Rank  0", f"#  Rank  {long}"))
    assert all(run.num_ranks < 1000 for run in runs)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# Out of bounds values : 0 OK", "# Out of bounds values : 16 FAILED", "16 values were out of bounds"),
        ("all_gather_perf", "hypercube_perf", "it is of hypercube_perf; needed one of all_reduce_perf"),
        ("#  Rank", "#  Task", "its ranks are not listed"),
    ],
)
def test_a_run_that_cannot_be_used_is_left_out_with_the_reason(old: str, new: str, said: str) -> None:
    runs, notes = parse_nccl_tests(replaced(old, new))
    assert runs == ()
    assert said in str(notes[-1])


def test_flagged_rows_explain_values_out_of_bounds_and_the_rest_is_used() -> None:
    old = row(SIZES[0])
    text = TABLE.text.replace(old, old.replace("       0 ", "      16 ", 1)).replace(": 0 OK", ": 16 FAILED")
    (run,), notes = parse_nccl_tests(Report("all_gather.txt", text))
    assert len(run.points) == 2 * len(SIZES) - 1
    assert "has 16 wrong values" in str(notes[0])


def test_processes_that_ran_alone_are_no_group() -> None:
    # nccl-tests built without MPI: every process is rank 0 (https://github.com/NVIDIA/nccl-tests/issues/107).
    lines = [line for line in TABLE.text.splitlines() if "Rank  0" in line or "Rank" not in line]
    twice = "\n".join(extra for line in lines for extra in ([line, line] if "Rank  0" in line else [line]))
    runs, notes = parse_nccl_tests(Report("all_gather.txt", twice))
    assert runs == ()
    assert "every process ran alone as rank 0; build nccl-tests with MPI=1" in str(notes[-1])


@pytest.mark.parametrize(("text", "said"), [("", "the file is empty"), ("hello\n", "there is no heading '# nThread")])
def test_other_text_has_no_runs(text: str, said: str) -> None:
    runs, (note,) = parse_nccl_tests(Report("out.log", text))
    assert runs == ()
    assert said in str(note)


@pytest.mark.parametrize("lines", range(0, 26, 3))
def test_a_table_that_was_cut_off_anywhere_never_fails(lines: int) -> None:
    runs, notes = parse_nccl_tests(Report("all_gather.txt", "\n".join(TABLE.text.splitlines()[:lines])))
    assert notes or runs
