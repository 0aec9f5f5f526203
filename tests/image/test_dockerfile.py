"""The reader of Dockerfiles understands ours, and refuses what it does not understand."""

from __future__ import annotations

from pathlib import Path

import pytest

from image.dockerfile import (
    UnknownSyntax,
    is_sent,
    list_context,
    parse_assignments,
    parse_copy,
    parse_dockerfile,
    substitute,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = """
# a comment
ARG BASE=debian:13
FROM ${BASE} AS build
ARG EXTRA=one
RUN first && \\
    # a comment inside
    second
FROM ${BASE}
COPY --from=build /a /b
ENV PATH=/a:$PATH B=2
EXPOSE 1 2
VOLUME /data
STOPSIGNAL SIGUSR2
HEALTHCHECK --interval=10s --timeout=3s CMD ["probe", "-x"]
ENTRYPOINT ["serve"]
CMD echo hello
"""


def test_stages_have_their_steps_and_settings() -> None:
    build, image = parse_dockerfile(EXAMPLE)
    assert (build.base, build.name, image.base, image.name) == ("debian:13", "build", "debian:13", "")
    assert [(step.name, step.text) for step in build.steps] == [
        ("ARG", "EXTRA=one"),
        ("RUN", "first && second"),
    ]
    assert [step.name for step in image.steps] == ["COPY", "ENV"]
    assert (image.entry_point, image.command) == (["serve"], ["/bin/sh", "-c", "echo hello"])
    assert (image.health_check, image.health_timeout_s) == (["probe", "-x"], 3)
    assert (image.stop_signal, image.volumes, image.ports) == ("SIGUSR2", ["/data"], [1, 2])


def test_variables_are_replaced() -> None:
    assert substitute("$A-${B}-$C", {"A": "1", "B": "2"}) == "1-2-"
    assert parse_assignments('A=$X B="two words"', {"X": "1"}) == {"A": "1", "B": "two words"}


def test_copies_name_their_stage() -> None:
    assert parse_copy("--from=build /a /b /c") == ("build", ["/a", "/b"], "/c")
    assert parse_copy(". .") == ("", ["."], ".")


@pytest.mark.parametrize(
    "line",
    ["ONBUILD RUN x", "RUN <<EOF", "HEALTHCHECK NONE", "ADD a b", 'SHELL ["sh"]'],
)
def test_unknown_syntax_is_an_error(line: str) -> None:
    with pytest.raises(UnknownSyntax):
        parse_dockerfile(f"FROM a\n{line}\n")
    with pytest.raises(UnknownSyntax, match="before the first FROM"):
        parse_dockerfile("RUN x\n")
    with pytest.raises(UnknownSyntax):
        parse_copy("--chown=1:1 a b")
    with pytest.raises(UnknownSyntax):
        parse_assignments("A 1", {})


def test_the_last_pattern_that_matches_decides() -> None:
    patterns = ["*", "!src", "**/*.so", "!src/kept.so"]
    assert is_sent(Path("src/a/b.py"), patterns)
    assert not is_sent(Path("tests/a.py"), patterns)
    assert not is_sent(Path("src/a/b.so"), patterns)
    assert is_sent(Path("src/kept.so"), patterns)


def test_our_dockerfile_is_understood_and_finds_its_files() -> None:
    build, image = parse_dockerfile((ROOT / "deploy" / "Dockerfile").read_text())
    assert build.base == image.base
    assert image.entry_point == ["headrace", "serve"]
    sent = list_context(ROOT)
    assert {Path("pyproject.toml"), Path("src/headrace/__init__.py"), Path("deploy/container.conf")} <= set(
        sent
    )
    assert not [path for path in sent if path.suffix in {".so", ".c", ".pyc"} or path.parts[0] == "tests"]
    for step in image.steps:
        if step.name == "COPY" and not (copied := parse_copy(step.text))[0]:
            assert {Path(source) for source in copied[1]} <= set(sent)
