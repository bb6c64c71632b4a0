"""Launch scripts are read as a shell reads them; where that can be checked, bash itself is asked."""

import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.specs import InputError
from meshwright.exporters.shell import commands, launches, read_commands, unresolved
from meshwright.exporters.shell_words import find_unknown

SCRIPTS = {
    "flags over several lines": "run --a 1 \\\n    --b 2\n",
    "a comment ends a line": "run --a 1 # --b 2\nrun --c 3\n",
    "a variable": "TP=8\nrun --tp $TP --name \"it is $TP\" --raw '$TP'\n",
    "a default": 'run --tp ${TP:-4} --other "${OTHER:-$((2 + 3))}"\n',
    "an array": 'ARGS=(\n    --a 1 # first\n    --b "two words"\n)\nARGS+=(--c)\nrun "${ARGS[@]}" last\n',
    "an empty array": 'ARGS=()\nrun "${ARGS[@]}" last\n',
    "a string of flags": 'ARGS="--a 1 --b 2"\nrun $ARGS\n',
    "arithmetic": "N=4\nG=8\nrun --world $((N * G)) --half $((N*G/2))\n",
    "quotes inside a word": "run --a='x y'\"z\"\\ end\n",
    "an empty word": 'run --name ""\n',
    "a condition": "N=1\nif [ $N -eq 1 ]; then run --one; fi\n",
    "one after the other": "A=1 && run --a $A; run --b\n",
    "a branch that is not taken": (
        'N=2\nif [ "$N" -eq 1 ]; then A=(--one)\nelif [[ $N == 2 ]]; then A=(--two)\nelse A=()\nfi\nrun "${A[@]}"\n'
    ),
    "tests that are joined": (
        'A=x\nif [[ "$A" == "y" ]] || [ -z "$B" ]; then run --one; fi\n'
        'if [ "$A" = x ] && [ "$A" != x ]; then run --two; elif [ ! -n "$B" ] && true; then run --three; fi\n'
    ),
    "a default of the script's own argument": 'run --a ${1:-x} "${2-y z}"\n',
    "a test before a command": 'A=\n[ -n "$A" ] && run --a\n[ -z "$A" ] && run --b\n',
    "a function that is not called": "f() {\n    run --inside\n}\nrun --outside\n",
    "a here-document": "cat > /dev/null <<EOF\nrun --inside ( ' \nEOF\nrun --outside\n",
    "a redirection": "run --n 2 --m 3 2>/dev/null\n",
    "a number before a redirection": "run --n 2 > /dev/stdout\n",
    "a joined word": "run --lr 3e-\\\n4\n",
}

PIECES = (
    "$", "{", "}", "(", ")", '"', "'", "\\", "`", "#", "\n", " ", ";", "&", "|", "<", ">", "=", "+", "[", "]", "a", "A", "1",
    " if ", " then ", " fi ", " else ", " elif ", " for ", " do ", " done ", " case ", " esac ", "$((", "${A:-", "${A[@]}", "A=(",
    "$@", "!", "function f ", "<<EOF\n", "EOF\n", "--num-layers ",
)  # fmt: skip


def of_bash(script: str) -> list[list[str]]:
    """The words that bash gives to every command called run."""
    spy = 'run() { for word in "$@"; do printf "%s\\0" "$word"; done; printf "\\n"; }\n'
    done = subprocess.run(["bash", "-c", spy + script], capture_output=True, text=True, check=True, env={})
    return [line.split("\0")[:-1] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_sees_the_same_words(name: str) -> None:
    assert shutil.which("bash")
    read = [words[1:] for words in read_commands(SCRIPTS[name]) if words[0] == "run"]
    assert read == of_bash(SCRIPTS[name])
    assert read


def test_what_only_a_running_shell_knows_stays_as_it_is_written() -> None:
    (command,) = read_commands('run --host "$(hostname)" --rank $SLURM_PROCID --world $((N * 2)) --all "$@"')
    assert command == [
        "run",
        "--host",
        "$(hostname)",
        "--rank",
        "$SLURM_PROCID",
        "--world",
        "$((N * 2))",
        "--all",
        "$@",
    ]
    assert [unresolved(word) for word in command[1:]] == [False, True] * 4


def test_both_sides_of_a_condition_are_read() -> None:
    script = 'if [ "$N" -eq 1 ]; then\n    A=(--one)\nelse\n    A+=(--more)\nfi\nexec run "${A[@]}"\n'
    assert read_commands(script)[-1] == ["run", "--one", "--more"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("run 'a", "line 1 of the script opens ', which"),
        ('\nA="b', "line 2"),
        ("A=(b", r"opens \("),
        ("run ${A", "opens {"),
    ],
)
def test_what_is_never_closed(script: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_commands(script)


def test_what_may_run_is_marked_where_it_decides() -> None:
    """Read for its values, a script's unknown branches and loops leave a mark instead of a guess."""
    script = 'TP=1\nif [ "$BIG" = 1 ]; then TP=8; fi\nfor PP in 1 2; do LAST=$PP; done\nrun --tp $TP --pp $LAST "$@"\n'
    (command,) = (found for found in commands(script) if found.words[0] == "run")
    assert len(command.words) == 5
    assert find_unknown(command.words[2]) == "TP at line 2, which is set under a condition to 8"
    assert "LAST at line 3" in (find_unknown(command.words[4]) or "")


def test_programs_are_found_behind_what_starts_them() -> None:
    script = "env A=1 srun -N 2 /usr/bin/torchrun --nnodes 2 train.py --x\npython -m other --y\n"
    found = [command.words for command in launches(script, ("torchrun", "python"))]
    assert found == [("/usr/bin/torchrun", "--nnodes", "2", "train.py", "--x"), ("python", "-m", "other", "--y")]


@pytest.mark.parametrize("script", ["if [ a = a ]; then run\n", "for x in a; do run\n", "if [ a = a ]\n"])
def test_blocks_that_are_cut_off(script: str) -> None:
    with pytest.raises(InputError, match=r"line 1: .* is missing; the file may be cut off"):
        commands(script)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever stands in a file, it is commands or one InputError."""
    for reader in (commands, read_commands):
        with suppress(InputError):
            assert reader(text) is not None


BOMBS = {
    "a variable that doubles": "A=xxxxxxxx\n" + 'A="$A$A"\n' * 60,
    "an array that doubles": "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60,
    "a word of many": f"A={'x' * 1000}\nrun {'$A' * 20_000}\n",
    "deep defaults": f"run {'${A:-' * 20_000}{'}' * 20_000}\n",
    "deep blocks": "if true; then\n" * 5_000 + "fi\n" * 5_000,
    "a long script": "run\n" * 60_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_texts_that_blow_up(text: str) -> None:
    with pytest.raises(InputError, match=r"grows beyond|too deeply|needed at most|which nothing closes"):
        commands(text)
