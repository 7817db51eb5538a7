"""Sampling on a real agent: one `nvidia-smi` that lives, old drivers, silent ones, and the run's own share."""

from __future__ import annotations

import os
from pathlib import Path

from agent_machine import Machine, wait_for


def smi(machine: Machine, script: str) -> None:
    """An `nvidia-smi` of our own, first on the machine's PATH."""
    folder = machine.home / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text("#!/bin/sh\n" + script)
    (folder / "nvidia-smi").chmod(0o755)
    machine.path = f"{folder}:{os.environ['PATH']}"


def test_one_program_answers_for_many_samples_and_the_newest_row_counts(tmp_path: Path) -> None:
    script = """case $* in *--loop=1*) ;; *) exit 0 ;; esac
echo started >> "$HOME/starts"
n=0; while :; do n=$((n + 1)); echo "0, $n, 39000, 40960, 61, 250.1, 0x0000000000000008"; sleep 0.5; done
"""
    with Machine(tmp_path, started=False, SAMPLE_S="1.0") as machine:
        smi(machine, script)
        machine.start()
        wait_for(lambda: len(machine.events("sample")) >= 4, "four samples")
        cards = [sample["gpus"] for sample in machine.events("sample")]
        assert [len(each) for each in cards] == [1] * len(cards)
        used = [each[0]["util"] for each in cards]
        assert used == sorted(set(used))
        assert {each[0]["throttle"] for each in cards} == {8}
        assert (machine.home / "starts").read_text() == "started\n"


def test_a_driver_that_does_not_know_a_field_is_asked_without_it(tmp_path: Path) -> None:
    script = """case $* in
*throttle*) echo 'Field "clocks_throttle_reasons.active" is not a valid field to query.'; exit 2 ;;
*) echo '0, 7, 1, 2, 3, [N/A]' ;;
esac
"""
    with Machine(tmp_path, started=False, SAMPLE_S="1.0") as machine:
        smi(machine, script)
        machine.start()
        wait_for(lambda: len(machine.events("sample")) >= 2, "two samples")
        for sample in machine.events("sample"):
            assert [(gpu["util"], gpu["power"], "throttle" in gpu) for gpu in sample["gpus"]] == [(7, None, False)]
            assert "smi" not in sample


def test_a_program_that_says_nothing_or_an_error_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    script = """if [ -e "$HOME/lost" ]; then echo 'Unable to determine the device handle'; exit 9; fi
: > "$HOME/lost"; exec sleep 300
"""
    with Machine(tmp_path, started=False, SAMPLE_S="1.0", SILENT_S="1.0") as machine:
        smi(machine, script)
        machine.start()
        wait_for(lambda: len(machine.events("sample")) >= 3, "three samples")
        first, *_, last = machine.events("sample")
        assert (first["gpus"], first["smi"]) == ([], "silent")
        assert (last["gpus"], last["smi"]) == ([], "Unable to determine the device handle")
        assert last["mem_used"] > 0


def test_the_runs_own_share_of_the_cpus_is_told(tmp_path: Path) -> None:
    with Machine(tmp_path, SAMPLE_S="1.0") as machine:
        machine.order("while :; do :; done")
        wait_for(lambda: any(sample["own"] >= 0.2 for sample in machine.events("sample")), "a busy run")
        busy = max(machine.events("sample"), key=lambda sample: sample["own"])
        assert 0.2 <= busy["top"] <= busy["own"] + 0.02
        assert busy["cpus"] >= 1
        assert 0 < busy["disk_free"] < busy["disk_total"]
        assert all(busy[name] >= 0 for name in ("disk_read", "disk_write", "net_in", "net_out", "iowait", "blocked"))


def test_a_program_that_prints_without_end_holds_nothing_up(tmp_path: Path) -> None:
    with Machine(tmp_path, started=False, SAMPLE_S="1.0") as machine:
        smi(machine, "exec yes '0, 1, 2, 3, 4, 5, 0xnothing'\n")
        machine.start()
        wait_for(lambda: len(machine.events("sample")) >= 2, "two samples")
        machine.order("echo over")
        wait_for(lambda: machine.events("exit"), "the run ends, and is seen to have ended")
        assert machine.events("sample")[-1]["gpus"][0]["throttle"] is None
