"""Fair Tree: Slurm's own example, small trees by hand, and random trees against the definition."""

import csv
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gsched.errors import ConfigError
from gschedd.shares.tree import Association, ShareAccount, ShareTree, ShareUser
from scripts.reproduce.arguments import shared_data
from scripts.reproduce.fairtree_main import BadTableError, rows_of, table_of
from tests.support.brute_fair_tree import brute_factors

ORACLE = shared_data("fairtree") / "slurm-35.csv"
HEADER = "parent,account,user,shares,usage\n"


def table(text: str) -> list[tuple[str, str, str, str]]:
    return list(table_of(rows_of(iter((HEADER + text).splitlines(keepends=True)))))


def factors(text: str) -> dict[str, float]:
    return {user: float(factor) for _, user, factor, _ in table(text) if user}


@pytest.mark.skipif(not ORACLE.is_file(), reason="../shared/data/fairtree is not there")
def test_slurms_own_tree_has_all_values_of_slurm() -> None:
    with ORACLE.open(encoding="utf-8") as file:
        wanted = [
            (row["account"], row["user"], row["fair_share"], row["level_fs"])
            for row in csv.DictReader(file)
        ]
    with ORACLE.open(encoding="utf-8") as file:
        found = list(table_of(rows_of(file)))

    assert found == wanted
    assert len(found) == 35


def test_users_directly_under_the_root_are_ranked_by_shares_by_usage() -> None:
    found = table(",root,,,\n,root,ann,10,30\n,root,bob,20,30\n,root,eve,10,0\n")

    assert found == [
        ("root", "", "", ""),
        ("root", "ann", "0.333333", "0.500000"),
        ("root", "bob", "0.666667", "1.000000"),
        ("root", "eve", "1.000000", "inf"),
    ]


def test_all_users_of_an_account_with_less_than_its_share_come_first() -> None:
    found = factors(
        ",root,,,\nroot,small,,1,\nroot,large,,1,\n"
        "root,small,ann,1,10\nroot,small,bob,1,20\nroot,large,eve,9,31\nroot,large,zoe,1,9\n"
    )

    assert found == {"ann": 1.0, "bob": 0.75, "eve": 0.5, "zoe": 0.25}


def test_children_of_accounts_that_tie_are_ranked_together() -> None:
    found = factors(
        ",root,,,\nroot,one,,1,\nroot,two,,1,\n"
        "root,one,ann,1,10\nroot,one,bob,1,30\nroot,two,eve,1,10\nroot,two,zoe,1,30\n"
    )

    assert found == {"ann": 1.0, "eve": 1.0, "bob": 0.5, "zoe": 0.5}


def test_a_user_that_ties_with_an_account_shares_the_rank_of_its_highest_user() -> None:
    found = factors(",root,,,\n,root,ann,1,20\nroot,lab,,1,\nroot,lab,bob,1,5\nroot,lab,eve,1,15\n")

    assert found == {"ann": 1.0, "bob": 1.0, "eve": pytest.approx(1 / 3)}


def test_an_account_without_users_takes_no_part_in_ties() -> None:
    found = factors(",root,,,\n,root,ann,1,20\nroot,empty,,1,20\nroot,lab,,1,\nroot,lab,bob,1,60\n")

    assert found == {"ann": 1.0, "bob": 0.5}


def test_children_of_an_account_with_shares_of_its_parent_compete_with_its_siblings() -> None:
    found = table(
        ",root,,,\nroot,lab,,1,\nlab,group,,parent,\n"
        "root,lab,ann,10,40\nlab,group,bob,30,40\nlab,group,eve,parent,20\n"
    )

    assert found[2:] == [
        ("group", "", "", ""),
        ("lab", "ann", "0.333333", "0.625000"),
        ("group", "bob", "0.666667", "1.875000"),
        ("group", "eve", "1.000000", ""),
    ]


def test_without_shares_no_usage_is_no_advantage() -> None:
    assert factors(",root,,,\n,root,ann,0,0\n,root,bob,1,99\n") == {"ann": 0.5, "bob": 1.0}


def test_the_usage_of_former_users_counts_for_their_account_only() -> None:
    found = factors(",root,,,\nroot,lab,,1,100\nroot,lab,ann,1,1\n,root,bob,1,50\n")

    assert found == {"ann": 0.5, "bob": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no account: the root is missing"),
        (",root,,,\nb,a,,1,\na,b,,1,\n", "accounts are parents of each other: a < b < a"),
        (",root,,,\na,a,,1,\n", "accounts are parents of each other: a < a"),
        (",root,,,\n,other,,,\n", "more than one account has no parent: root, other"),
        (",root,,,\nlabs,lab,,1,\n", "account lab has parent labs, which is unknown"),
        (",root,,,\n,root,,,\n", "account root is given twice"),
        (",root,,,\n,root,ann,1,1\n,root,ann,1,1\n", "user ann is given twice in account root"),
        (",root,,,\n,lab,ann,1,1\n", "user ann is in account lab, which is unknown"),
        (",root,,1,\n", "line 2: root account root competes with none: no shares"),
        (",root,,,\n,root,ann,-1,1\n", "line 3: shares '-1': write a number, 0 or more, or parent"),
        (",root,,,\n,root,ann,,1\n", "line 3: shares '': write a number, 0 or more, or parent"),
        (",root,,,\n,root,ann,nan,1\n", "line 3: shares 'nan': write a number, 0 or more"),
        (",root,,,\n,root,ann,1,-5\n", "line 3: usage '-5': write a number, 0 or more"),
        (",root,,,\n,root,ann,1,\n", "line 3: no usage of user ann"),
        (",root,,,\n,root,ann,1\n", "line 3: 4 cells, and the header has 5"),
        (",root,,,3\n,root,ann,1,5\n", "line 2: account root has usage 3, and what is in it 5"),
        (
            ",root,,,\nroot,lab,,1,\n,lab,ann,1,5\n",
            "line 4: user ann of account lab has parent none",
        ),
    ],
)
def test_a_table_that_is_no_tree_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises((BadTableError, ConfigError)) as refused:
        table(text)

    assert message in str(refused.value)


def test_a_table_with_other_columns_is_refused() -> None:
    with pytest.raises(BadTableError, match="no column usage"):
        rows_of(iter(["parent,account,user,shares\n"]))
    with pytest.raises(BadTableError, match="'colour' is unknown"):
        rows_of(iter(["parent,account,user,shares,usage,colour\n"]))


def test_the_command_prints_the_table_or_what_is_wrong(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(HEADER + ",root,,,\n,root,ann,1,0\n", encoding="utf-8")
    bad.write_text(HEADER + ",root,,x,\n", encoding="utf-8")
    command = [sys.executable, "-m", "scripts.reproduce.fairtree_main"]

    printed = subprocess.run([*command, str(good)], check=True, capture_output=True, text=True)
    refused = subprocess.run([*command, str(bad)], check=False, capture_output=True, text=True)

    assert printed.stdout == "account,user,fair_share,level_fs\nroot,,,\nroot,ann,1.000000,inf\n"
    assert refused.returncode == 65
    assert refused.stderr.startswith(f"fairtree: {bad}: line 2: ")
    assert "Traceback" not in refused.stderr


def random_tree(
    seed: int,
) -> tuple[list[ShareAccount], list[ShareUser], dict[Association, float]]:
    """Return a tree with few different numbers, so that many tie."""
    rng = random.Random(seed)

    def shares() -> float | None:
        return rng.choice((None, 0.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0))

    deep = rng.random() < 0.2
    accounts = [ShareAccount(name="a0")]
    for number in range(1, rng.randint(1, 30 if deep else 9)):
        above = number - 1 if deep else rng.randrange(number)
        accounts.append(ShareAccount(name=f"a{number}", parent=f"a{above}", shares=shares()))
    users = [
        ShareUser(account=rng.choice(accounts).name, user=f"u{number}", shares=shares())
        for number in range(rng.randint(0, 14))
    ]
    amounts = (0.0,) if rng.random() < 0.1 else (0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 4.0, 6.0)
    usage = {(user.account, user.user): rng.choice(amounts) for user in users}
    usage |= {(rng.choice(accounts).name, ""): 2.0 for _ in range(rng.choice((0, 0, 1)))}
    rng.shuffle(accounts)
    return accounts, users, usage


def test_random_trees_have_the_factors_of_the_definition() -> None:
    tied = 0
    for seed in range(1_000):
        accounts, users, usage = random_tree(seed)
        found = ShareTree(accounts, users).factors(usage)

        assert found == pytest.approx(brute_factors(accounts, users, usage)), f"seed {seed}"
        tied += len(set(found.values())) < len(found)
    assert tied > 300, "too few of the trees have ties"


def test_a_tree_of_a_thousand_levels_is_ranked() -> None:
    accounts = [ShareAccount(name="a0")]
    accounts += [ShareAccount(name=f"a{n}", parent=f"a{n - 1}") for n in range(1, 3_000)]
    users = [ShareUser(account=account.name, user="ann") for account in accounts]

    found = ShareTree(accounts, users).factors({("a2999", "ann"): 1.0})

    assert found["a0", "ann"] == 1.0
    assert found["a2999", "ann"] == pytest.approx(1 / 3_000)


def two_projects() -> ShareTree:
    """Return a tree of two projects; ann and bob are in the one, eve in the other."""
    accounts = [ShareAccount(name="root")]
    accounts += [ShareAccount(name=name, parent="root") for name in ("one", "two")]
    members = (("one", "ann", 3.0), ("one", "bob", 1.0), ("two", "eve", 1.0))
    return ShareTree(accounts, [ShareUser(account=a, user=u, shares=s) for a, u, s in members])


ANN, BOB, EVE = ("one", "ann"), ("one", "bob"), ("two", "eve")


@pytest.mark.parametrize(
    ("demand", "usage", "expected"),
    [
        pytest.param({ANN: 9, BOB: 9, EVE: 9}, {}, {ANN: 3, BOB: 1, EVE: 4}, id="by shares"),
        pytest.param({ANN: 1, BOB: 9, EVE: 2}, {}, {ANN: 1, BOB: 5, EVE: 2}, id="what is left"),
        pytest.param({ANN: 9, EVE: 9}, {ANN: 3, EVE: 1}, {ANN: 3.2, EVE: 4.8}, id="by usage"),
        pytest.param({EVE: 9}, {EVE: 1000}, {EVE: 8}, id="alone"),
        pytest.param(
            {ANN: 9, BOB: 9, EVE: 9}, {ANN: 4, BOB: 0, EVE: 4}, {ANN: 2.769, BOB: 1.231, EVE: 4}
        ),
    ],
)
def test_a_whole_is_divided_by_shares_and_usage_among_those_who_need_it(
    demand: dict[Association, float],
    usage: dict[Association, float],
    expected: dict[Association, float],
) -> None:
    found = two_projects().entitlements(demand, usage, 8.0)

    assert found == pytest.approx(expected, abs=0.001)


def test_shares_count_by_a_tenth_at_least() -> None:
    users = [ShareUser(account="root", user=f"u{at}") for at in range(30)]
    tree = ShareTree([ShareAccount(name="root")], users)
    found = tree.entitlements({("root", "u0"): 9, ("root", "u1"): 9}, {("root", "u0"): 1}, 1.1)

    assert found == pytest.approx({("root", "u0"): 0.1, ("root", "u1"): 1.0})
