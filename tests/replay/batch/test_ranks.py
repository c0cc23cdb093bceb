from __future__ import annotations

import pytest

from opreplay.replay.batch.ranks import assign_jobs, labels, rank_in_name, without_rank


def jobs(*traces: tuple[str, int | None, int | None]) -> list[tuple[str, int | None, str]]:
    members = assign_jobs([path for path, _, _ in traces], [(rank, size) for _, rank, size in traces])
    return [(member.job, member.rank, member.rank_from) for member in members]


def test_ranks_are_told_by_metadata_and_names_agree_but_for_the_rank() -> None:
    assert jobs(("a/step3_rank0.json", 0, 8), ("a/step3_rank1.json", 1, 8), ("a/step4_rank1.json", 1, 8)) == [
        ("step3_rank*.json", 0, "metadata"),
        ("step3_rank*.json", 1, "metadata"),
        ("step4_rank1.json", 1, "metadata"),
    ]


def test_names_that_do_not_tell_the_rank_may_differ_in_all_numbers() -> None:
    found = jobs(("a/host_8112.17001.pt.trace.json", 0, 2), ("a/host_8115.17044.pt.trace.json", 1, 2))
    assert len({job for job, _, _ in found}) == 1


def test_a_rank_without_metadata_is_told_by_the_name() -> None:
    found = jobs(("a/rank-0/trace.json", None, None), ("a/rank-12/trace.json", None, None), ("a/x.json", None, None))
    assert [(rank, how) for _, rank, how in found] == [(0, "file name"), (12, "file name"), (None, "")]
    assert found[0][0] == found[1][0] != found[2][0]


def test_other_world_sizes_folders_and_recordings_are_other_jobs() -> None:
    found = jobs(
        ("a/rank0.json", 0, 8),
        ("a/rank1.json", 1, 16),
        ("b/rank1.json", 1, 8),
        ("a/rank00.json", 0, 8),
    )
    assert len({job for job, _, _ in found}) == 4, found


def test_jobs_of_one_name_get_their_folders() -> None:
    found = jobs(("old/rank0.json", 0, 2), ("new/rank0.json", 0, 2))
    assert [job for job, _, _ in found] == ["old/rank0.json", "new/rank0.json"]


@pytest.mark.parametrize(
    ("path", "rank", "masked"),
    [
        ("t/rank7.json", 7, "t/rank*.json"),
        ("t/RANK_03.json", 3, "t/RANK_*.json"),
        ("1/step_1_worker_1.json", 1, "1/step_1_worker_*.json"),
        ("t/host_12.json", 0, "t/host_*.json"),
        ("t/trace.json", 5, "t/trace.json"),
    ],
)
def test_the_rank_is_masked_in_a_name(path: str, rank: int, masked: str) -> None:
    assert without_rank(path, rank) == masked


def test_the_last_rank_of_a_path_counts() -> None:
    assert rank_in_name("rank3/x_rank11.json.gz") == 11
    assert rank_in_name("ranking.json") is None


def test_labels_have_as_many_folders_as_they_need() -> None:
    assert labels(["/a/b/t.json", "/a/c/t.json", "/a/c/u.json"]) == ["b/t.json", "c/t.json", "u.json"]
    assert labels(["t.json", "t.json"]) == ["t.json", "t.json"], "nothing tells them apart"
