"""Limits on the size of functions, files, parameter lists and classes, with the exceptions that are left. They only shrink.

And what parts may know of each other, how functions are named, and what packages export: other packages import a name
from a package only if its `__all__` has it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from support.source_tree import SOURCE, list_nodes, parse_module, read_source

FUNCTION_LINES_MAX = 40
FILE_LINES_MAX = 400
PARAMETERS_MAX = 8
CHAIN_NAMES_MAX = 3
ATTRIBUTES_MAX = 25
METHODS_MAX = 40

#: Functions with more lines of code, and how many.
LONG_FUNCTIONS = {
    "cli/messages.py:pub": 50,  # most lines declare options
    "cli/spark_jobs.py:claims_collect": 44,  # most lines declare options
    "cli/spark_jobs.py:land": 43,  # most lines declare options
    "cli/top.py:top": 44,  # most lines declare options
}
#: Files with more lines, and how many.
LONG_FILES = {
    "_native/records_pure.py": 892,  # mirrors records.pyx, name by name
    "_native/parser_pure.py": 556,  # mirrors parser.pyx, name by name
}
#: Functions with more parameters, and how many. Those of the public API take keywords.
MANY_PARAMETERS = {
    "reader/__init__.py:read": 17,  # public, keywords
    "cli/messages.py:pub": 13,  # options of a command
    "cli/spark_jobs.py:land": 12,  # options of a command
    "client/sourcing_consumer.py:create_sourcing_consumer": 12,  # public, keywords
    "reader/__init__.py:read_kv": 11,  # public, keywords
    "spark/jobs/landing.py:land": 11,  # public, keywords
    "_native/deliveries_pure.py:encode_deliveries": 11,  # one call of the compiled core for a run of messages
    "_native/deliveries_pure.py:encode_leafnode_run": 9,  # one call of the compiled core for a run of messages
    "_native/direct_get_pure.py:encode_replies": 10,  # one call of the compiled core for a run of messages
    "claims/claims.py:open": 9,  # public, keywords
    "cli/spark_jobs.py:claims_collect": 9,  # options of a command
    "cli/spark_jobs.py:replay": 9,  # options of a command
    "client/context.py:consume": 10,  # public, keywords
    "spark/claims/resolve.py:resolve": 9,  # public, keywords
    "spark/jobs/collect_claims.py:claims_collect": 9,  # public, keywords
}
#: Classes with more attributes, and how many. Values (dataclasses, structs) may have any number of fields.
MANY_ATTRIBUTES = {
    "broker/consumers/consumer.py:Consumer": 35,  # puts the parts of a consumer together, and is their context
    "broker/consumers/ack_state_record.py:AckStateRecord": 26,  # all that is stored of a consumer's state
    "broker/jetstream.py:AccountJetStream": 33,  # puts the parts of an account together, and is their context
}
#: Classes with more methods, and how many.
MANY_METHODS = {
    "sim/disk/sim_disk.py:SimDisk": 43,  # mirrors `Disk`, and adds faults
}
#: Local names in `broker` that stand for three names or more and are used once, to reach a fourth. Configurations and
#: limits are values: reading one field of them is fine.
ONE_USE_ALIASES_MAX = 14


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, list[str]]]:
    for path in sorted(SOURCE.rglob("*.py")):
        lines = read_source(path).split("\n")
        for node in list_nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{path.relative_to(SOURCE)}:{node.name}", node, lines


def count_code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Count the lines that are neither blank, nor a comment, nor part of the docstring."""
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = range(first.lineno, (first.end_lineno or 0) + 1) if is_docstring else range(0)
    numbers = range(node.lineno, (node.end_lineno or 0) + 1)
    texts = [lines[number - 1].strip() for number in numbers if number not in docstring]
    return sum(1 for text in texts if text and not text.startswith("#"))


def check(found: dict[str, int], allowed: dict[str, int]) -> None:
    grown = {name: size for name, size in found.items() if size > allowed.get(name, 0)}
    assert not grown, "make it smaller, or say why it cannot be"
    gone = set(allowed) - set(found)
    assert not gone, "these are within the limit now: take them out of the list"


def test_functions_are_short() -> None:
    sizes = {name: count_code_lines(node, lines) for name, node, lines in functions()}
    check({name: size for name, size in sizes.items() if size > FUNCTION_LINES_MAX}, LONG_FUNCTIONS)


def test_files_are_short() -> None:
    sizes = {
        str(path.relative_to(SOURCE)): len(read_source(path).splitlines()) for path in SOURCE.rglob("*.py")
    }
    check({name: size for name, size in sizes.items() if size > FILE_LINES_MAX}, LONG_FILES)


def iter_chains() -> Iterator[str]:
    """Yield expressions such as `self.stream.log.first_seq`, which reach through one part into another."""
    for path in sorted((SOURCE / "broker").rglob("*.py")):
        attributes = [node for node in list_nodes(path) if isinstance(node, ast.Attribute)]
        inner = {id(node.value) for node in attributes}
        for node in attributes:
            names = ast.unparse(node).split(".")
            if id(node) not in inner and len(names) > CHAIN_NAMES_MAX and all(map(str.isidentifier, names)):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}: {'.'.join(names)}"


def test_parts_of_the_broker_use_what_they_were_given() -> None:
    assert not list(iter_chains()), "give the part what it uses, or ask its neighbour to do it"


def find_aliases(function: ast.AST) -> dict[str, list[str]]:
    """Local names that stand for an attribute chain: `timers = self._jetstream.timers`."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for name, chain in pairs:
            names = ast.unparse(chain).split(".") if isinstance(chain, ast.Attribute) else []
            if (
                isinstance(name, ast.Name)
                and len(names) >= CHAIN_NAMES_MAX
                and all(map(str.isidentifier, names))
            ):
                found[name.id] = names
    return found


def iter_one_use_aliases() -> Iterator[str]:
    """Aliases that only hide a chain from the test above."""
    for place, node, _ in functions():
        if not place.startswith("broker/"):
            continue
        nodes = list(ast.walk(node))
        loads = [each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
        reached = {ast.unparse(each.value) for each in nodes if isinstance(each, ast.Attribute)}
        for name, chain in find_aliases(node).items():
            if loads.count(name) == 1 and name in reached and chain[-1] not in ("config", "limits"):
                yield f"{place}: {name} = {'.'.join(chain)}"


def test_chains_are_not_hidden_by_local_names() -> None:
    aliases = list(iter_one_use_aliases())
    assert len(aliases) <= ONE_USE_ALIASES_MAX, f"give the part what it uses when it is created: {aliases}"
    assert len(aliases) == ONE_USE_ALIASES_MAX, "there are fewer now: lower the limit"


def find_own_attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class adds to those of its bases: its `__slots__`, else what its methods assign."""
    for each in node.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
            return set(ast.literal_eval(each.value))
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
    }


def iter_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in list_nodes(path):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(SOURCE)}:{node.name}", node


def test_a_class_knows_few_things() -> None:
    counts = {place: len(find_own_attributes(node)) for place, node in iter_classes()}
    check({place: count for place, count in counts.items() if count > ATTRIBUTES_MAX}, MANY_ATTRIBUTES)


def test_a_class_does_few_things() -> None:
    counts = {
        place: sum(isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) for each in node.body)
        for place, node in iter_classes()
    }
    check({place: count for place, count in counts.items() if count > METHODS_MAX}, MANY_METHODS)


def test_nothing_asks_for_the_type_of_a_delivery_mode() -> None:
    """`DeliveryMode` says what a consumer may ask; a new mode has to implement that, and nothing else."""
    modes = {"DeliveryMode", "PullQueue", "PushDelivery"}
    wrong = []
    for path in sorted((SOURCE / "broker").rglob("*.py")):
        for node in list_nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass", "type"):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                if names & modes or "delivery_mode" in names:
                    wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not wrong, "add what is needed to `DeliveryMode`"


#: Participles that do not end in -ed or -ing, and words that do without being one.
IRREGULAR = {
    *("broken", "brought", "built", "chosen", "done", "found", "given", "gone", "grown", "heard", "held"),
    *("hidden", "kept", "known", "left", "lost", "made", "meant", "met", "paid", "said", "seen", "sent"),
    *("shown", "sold", "spent", "stolen", "taken", "told", "understood", "won", "worn", "written"),
}
NO_PARTICIPLES = {"bring", "embed", "feed", "need", "ping", "proceed", "seed"}
NO_PARTICIPLES |= {"used"}  # of the simulated disk: bytes, beside `free`


def is_bare_participle(name: str) -> bool:
    word = name.strip("_")
    if "_" in word or not word.islower() or word in NO_PARTICIPLES:
        return False
    return word.endswith(("ed", "ing")) or word in IRREGULAR


def test_a_function_is_named_by_a_verb() -> None:
    """`told` does not say what happens. Properties name a state, and context managers a state that ends."""
    wrong = []
    for place, node, _ in functions():
        decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
        if is_bare_participle(node.name) and not decorators & {"property", "contextmanager"}:
            wrong.append(place)
    assert not wrong, "say what it does, such as `find_matching` or `exclude`"


def iter_placeholders() -> Iterator[str]:
    """Yield attributes that are a lambda until another object replaces them."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in list_nodes(path):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Lambda):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Attribute) for target in targets):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"


def test_no_callback_waits_to_be_overwritten() -> None:
    # `should_lose` of a simulated network is a setting of a test, not a callback.
    assert [each for each in iter_placeholders() if "should_lose" not in each] == [], "use a protocol"


def test_parameter_lists_are_short() -> None:
    counts: dict[str, int] = {}
    for name, node, _ in functions():
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = sum(1 for each in parameters if each.arg not in ("self", "cls"))
        counts[name] = max(count, counts.get(name, 0))
    check({name: count for name, count in counts.items() if count > PARAMETERS_MAX}, MANY_PARAMETERS)


def packages() -> dict[str, Path]:
    """Return the folders of all packages, by name."""
    folders = [path.parent for path in SOURCE.rglob("__init__.py")]
    return {".".join(folder.relative_to(SOURCE.parent).parts): folder for folder in folders}


def find_exports(folder: Path) -> set[str] | None:
    """The names in the `__all__` of a package; None if it has none."""
    for node in parse_module(folder / "__init__.py").body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, (ast.Assign, ast.AnnAssign))
            assert node.value is not None
            return set(ast.literal_eval(node.value))
    return None


def is_module(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or any(folder.glob(f"{name}.*"))


def test_every_package_says_what_it_exports() -> None:
    exports = {name: find_exports(folder) for name, folder in packages().items()}
    silent = [name for name, names in exports.items() if names is None]
    assert not silent, "give them an `__all__`; an empty one if others import their modules only"


def test_a_package_exports_what_others_import() -> None:
    folders = packages()
    exports = {name: find_exports(folder) or set() for name, folder in folders.items()}
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in list_nodes(path):
            if not (isinstance(node, ast.ImportFrom) and node.module in folders):
                continue
            names = {alias.name for alias in node.names} - exports[node.module]
            hidden = {name for name in names if not is_module(folders[node.module], name)}
            wrong += [f"{path.relative_to(SOURCE)}: {node.module}.{name}" for name in sorted(hidden)]
    assert not wrong, "import them from their own module, or export them"
