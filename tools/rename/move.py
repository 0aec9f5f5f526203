"""Module moves. usage: move.py ROOT modules.txt"""
from __future__ import annotations
import ast, sys, re, pathlib, subprocess, collections, os
ROOT = pathlib.Path(sys.argv[1]).resolve(); os.chdir(ROOT)
src = pathlib.Path("src/headrace")
MOVES: dict[str, str] = {}
for line in open(sys.argv[2]):
    if line.strip():
        a, b = line.split(); MOVES[a] = b
def dotted(x): return ("headrace." + x.replace("/", ".")).removesuffix(".__init__")
OLDFILES = []
MODMAP: dict[str, str] = {}
for a, b in MOVES.items():
    if a != b: MODMAP[dotted(a)] = dotted(b)
    for suf in ("_pure",):
        if (src / f"{a}{suf}.py").exists(): MODMAP[dotted(a) + suf] = dotted(b) + suf
allmods = set()
for p in src.rglob("*"):
    if p.suffix in (".py", ".pyi", ".pyx", ".pxd"):
        allmods.add(("headrace." + str(p.relative_to(src).with_suffix("")).replace("/", ".")).removesuffix(".__init__"))
# packages renamed as a whole: unmapped modules in them?
for m in sorted(allmods):
    top = m.split(".")[1] if "." in m else ""
    if top in ("store", "api", "kernel", "reading") and m not in MODMAP: print("UNMAPPED", m)
def new(m): return MODMAP.get(m, m)

sys.argv = ["x"]
# ---- scopes
exec(open(pathlib.Path(__file__).with_name('scoper.py')).read())

problems = []
def rewrite(p: pathlib.Path):
    text = p.read_text(); tree = ast.parse(text)
    is_pkg = p.name == "__init__.py"
    mod = ""
    if str(p).startswith("src/"):
        mod = str(p.relative_to("src").with_suffix("")).replace("/", ".").removesuffix(".__init__")
    root = Scoper(mod, is_pkg, tree).root
    L = text.split("\n")
    edits = []  # (line, col, endline, endcol, text)
    renames = collections.defaultdict(dict)  # scope -> {old:new}
    scope_of_import = {}
    for s in walk(root):
        for nd in s.importnodes: scope_of_import[nd] = s
    allnames = {n for s in walk(root) for n in s.bound}
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and not n.level and n.module and n.module.split(".")[0] == "headrace":
            groups = collections.OrderedDict(); changed = False
            for a in n.names:
                full = f"{n.module}.{a.name}"
                if full in allmods and full in MODMAP:
                    np, nm = MODMAP[full].rsplit(".", 1); asn = a.asname
                    if asn is None and nm != a.name:
                        if nm in allnames: asn = a.name; problems.append(f"{p}:{n.lineno}: kept alias {nm} as {a.name}")
                        else: renames[scope_of_import[n]][a.name] = nm
                    groups.setdefault(np, []).append((nm, asn)); changed = True
                elif full in allmods:
                    groups.setdefault(n.module, []).append((a.name, a.asname))
                else:
                    t = new(n.module); changed |= t != n.module
                    groups.setdefault(t, []).append((a.name, a.asname))
            if changed:
                ind = " " * n.col_offset
                out = []
                for g, names in groups.items():
                    mark = g.replace("headrace", "headr\x01ce", 1)
                    out.append(f"from {mark} import " + ", ".join(f"{x} as {y}" if y else x for x, y in names))
                edits.append((n.lineno, n.col_offset, n.end_lineno, n.end_col_offset, ("\n" + ind).join(out)))
        elif isinstance(n, ast.Import):
            for a in n.names:
                if a.name in MODMAP:
                    problems.append(f"{p}:{n.lineno}: import {a.name}")
    for s in walk(root):
        for node in s.names:
            nm = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else node.name
            home = resolve(s, nm)
            if home in renames and nm in renames[home] and isinstance(node, ast.Name):
                edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, renames[home][nm]))
    enc = [l.encode() for l in L]
    for l1, c1, l2, c2, t in sorted(edits, reverse=True):
        joined = enc[l1 - 1][:c1] + t.encode() + enc[l2 - 1][c2:]
        enc[l1 - 1 : l2] = joined.split(b"\n")
    text2 = b"\n".join(enc).decode()
    # dotted strings and paths
    text2 = textual(text2).replace("headr\x01ce", "headrace")
    if text2 != text: p.write_text(text2)

ordered = sorted(MODMAP, key=len, reverse=True)
pat = re.compile(r"(?<![\w.])(" + "|".join(re.escape(m) for m in ordered) + r")(?![\w])(?!\.(?:%s)\b)" % "x^")
PATHMAP = {a: b for a, b in MOVES.items() if a != b}
for a in list(PATHMAP):
    if (src / f"{a}_pure.py").exists(): PATHMAP[a + "_pure"] = PATHMAP[a] + "_pure"
ppat = re.compile(r"(?<![\w/.])((?:src/)?(?:headrace/)?)(" + "|".join(re.escape(a) for a in sorted(PATHMAP, key=len, reverse=True)) + r")(\.pyx|\.pyi|\.pxd|\.py)\b")
def textual(t: str) -> str:
    t = pat.sub(lambda m: MODMAP[m.group(1)], t)
    t = ppat.sub(lambda m: m.group(1) + PATHMAP[m.group(2)] + m.group(3), t)
    for a, b in (("headrace/kernel", "headrace/_native"), ("headrace/store", "headrace/storage"), ("headrace/api/", "headrace/jetstream_api/")): t = t.replace(a, b)
    return t

for base in ("src", "tests", "bench", "docs"):
    for p in sorted(pathlib.Path(base).rglob("*")):
        if "fixtures" in p.parts or p.is_dir() or "out" in p.parts: continue
        if p.suffix in (".py", ".pyi"):
            rewrite(p)
        elif p.suffix in (".pyx", ".pxd", ".md", ".txt", ".toml", ".yml", ".yaml"):
            t = p.read_text(); t2 = textual(t)
            if t2 != t: p.write_text(t2)
for f in ("Makefile", "setup.py", "pyproject.toml", "README.md", "CONTRIBUTING.md", ".gitignore", "mkdocs.yml"):
    p = pathlib.Path(f); t = p.read_text(); t2 = textual(t)
    if t2 != t: p.write_text(t2)
# moves
tmp = []
for a, b in MOVES.items():
    if a == b: continue
    for suf in (".py", ".pyi", ".pyx", ".pxd", "_pure.py"):
        o = src / f"{a}{suf}"
        if o.exists():
            stage = pathlib.Path(str(o) + ".moving"); subprocess.check_call(["git", "mv", str(o), str(stage)]); tmp.append((stage, src / f"{b}{suf}"))
for stage, dest in tmp:
    dest.parent.mkdir(parents=True, exist_ok=True)
    subprocess.check_call(["git", "mv", str(stage), str(dest)])
for so in src.glob("kernel/*.so"): so.unlink()
print("\n".join(problems))
for d in {p.parent for p in src.rglob("*.py")}:
    if not (d / "__init__.py").exists(): print("needs __init__", d)
