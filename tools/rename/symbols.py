"""Type-aware batch rename. usage: symbols.py ROOT MAP.tsv... [--dry]"""
from __future__ import annotations
import ast, sys, re, pathlib, collections, builtins, json
from dataclasses import dataclass, field
from mypy import build, nodes, types as T
from mypy.options import Options
from mypy.modulefinder import BuildSource
import os

ROOT = pathlib.Path(sys.argv[1]).resolve()
DRY = "--dry" in sys.argv
MAPS = [a for a in sys.argv[2:] if not a.startswith("--")]
os.chdir(ROOT)

def modname(p: pathlib.Path) -> str:
    r = p.relative_to(ROOT)
    parts = list(r.with_suffix("").parts)
    if parts[0] in ("src", "tests"): parts = parts[1:]
    if parts[-1] == "__init__": parts = parts[:-1]
    return ".".join(parts)

FILES: dict[str, pathlib.Path] = {}
for base in ("src", "tests", "bench", "docs"):
    for p in sorted((ROOT / base).rglob("*.py")):
        if "fixtures" in p.parts: continue
        FILES[modname(p)] = p
STUBS: dict[str, pathlib.Path] = {}
for p in sorted((ROOT / "src").rglob("*.pyi")):
    STUBS[modname(p)] = p
ALL: dict[str, pathlib.Path] = {**FILES, **STUBS}
SRCMODS = {m for m in ALL if m.startswith("headrace")}
PACKAGES = {m for m, p in FILES.items() if p.name == "__init__.py"}

# ---------------------------------------------------------------- map
TOP: dict[str, str] = {}          # mod.Name -> new
MEMBER: dict[str, str] = {}       # mod.Class.name -> new
PARAM: dict[tuple[str, str], str] = {}   # (fullname of function, param) -> new
LOCAL: dict[tuple[str, str], str] = {}   # (module, word) -> new
KWORDS: dict[str, dict[str, str]] = collections.defaultdict(dict)
PUBLIC: list[tuple[str, str]] = []
problems: list[str] = []

def split_symbol(full: str) -> tuple[str, list[str]]:
    parts = full.split(".")
    for i in range(len(parts) - 1, 0, -1):
        m = ".".join(parts[:i])
        if m in ALL: return m, parts[i:]
    return "", parts

for mp in MAPS:
    for ln, line in enumerate(open(mp), 1):
        line = line.rstrip("\n")
        if not line.strip() or line.startswith("#"): continue
        cols = line.split("\t")
        if len(cols) < 2: problems.append(f"{mp}:{ln}: bad line {line!r}"); continue
        old, new = cols[0].strip().removeprefix("tests."), cols[1].strip()
        if "!" not in old and not re.fullmatch(r"[A-Za-z_]\w*", new): problems.append(f"{mp}:{ln}: bad new name {new!r}"); continue
        if len(cols) > 2 and "PUBLIC" in cols[2]: PUBLIC.append((old, new))
        if "!" in old:
            m, w = old.split("!", 1); KWORDS[m][w] = new; continue
        if ":" in old:
            m, w = old.split(":"); 
            if m not in ALL: problems.append(f"{mp}:{ln}: no module {m}"); continue
            LOCAL[(m, w)] = new; continue
        if old.endswith(")"):
            f, a = old[:-1].split("(")
            for alias in {f, re.sub(r"^(headrace\.kernel\.\w+?)(_pure)?\.", r"\1_pure.", f)}: PARAM[(alias, a)] = new
            continue
        mod, rest = split_symbol(old)
        if not mod or not 1 <= len(rest) <= 4: problems.append(f"{mp}:{ln}: cannot place {old}"); continue
        if old.rsplit(".",1)[1] == new: continue
        d = TOP if len(rest) == 1 else MEMBER
        if old in d and d[old] != new: problems.append(f"{mp}:{ln}: conflict {old}: {d[old]} / {new}"); continue
        d[old] = new
        if mod.startswith("headrace.kernel.") and mod + "_pure" in ALL:
            d.setdefault(".".join([mod + "_pure", *rest]), new)

# ---------------------------------------------------------------- mypy
def run_mypy():
    o = Options()
    o.strict_optional = True; o.check_untyped_defs = True; o.preserve_asts = True; o.export_types = True
    o.incremental = False; o.cache_dir = os.devnull; o.ignore_missing_imports = True; o.follow_imports = "normal"
    o.namespace_packages = True; o.explicit_package_bases = True; o.mypy_path = ["src", "tests"]
    o.python_version = (3, 11); o.show_traceback = True; o.warn_unreachable = False; o.allow_redefinition=False
    o.python_executable = sys.executable
    srcs = [BuildSource(str(p), m, re.sub(r"(?m)^(\s*from )tests\.", r"\1", p.read_text())) for m, p in FILES.items() if m not in STUBS]
    srcs += [BuildSource(str(p), m, None) for m, p in STUBS.items()]
    srcs += [BuildSource(str(p), m + "", None) for m, p in []]
    try:
        return build.build(srcs, o)
    except build.CompileError as e:
        print("\n".join(e.messages)[:5000]); raise
res = run_mypy()
print("mypy done", len(res.types), "types;", len(res.errors), "errors", file=sys.stderr)

# names of members by simple name over src classes, mapped or not
members_by_name: dict[str, set[str]] = collections.defaultdict(set)
allinfos: dict[str, nodes.TypeInfo] = {}
for m, st in res.graph.items():
    t = st.tree
    if t is None: continue
    if m not in ALL: continue
    def walk_info(names):
        for n, s in names.items():
            if isinstance(s.node, nodes.TypeInfo) and s.node.fullname.startswith(m + ".") and s.node.fullname not in allinfos:
                allinfos[s.node.fullname] = s.node
                for a in s.node.names: members_by_name[a].add(s.node.fullname)
                walk_info(s.node.names)
    walk_info(t.names)
for full in MEMBER:
    cls, name = full.rsplit(".", 1)
    if cls in allinfos and name not in allinfos[cls].names: problems.append(f"no member {full}")
    if cls not in allinfos and not ".kernel." in cls: problems.append(f"no class {cls}")
    if cls in allinfos and MEMBER[full] in allinfos[cls].names and f"{cls}.{MEMBER[full]}" not in MEMBER:
        problems.append(f"collision: {full} -> {MEMBER[full]} exists in class")

mapped_names: dict[str, set[str]] = collections.defaultdict(set)
for full, new in MEMBER.items(): mapped_names[full.rsplit(".", 1)[1]].add(new)

def infos(t) -> list[nodes.TypeInfo] | None:
    """TypeInfos behind a type, None if Any/unknown."""
    if t is None: return None
    t = T.get_proper_type(t)
    if isinstance(t, T.AnyType): return None
    if isinstance(t, T.Instance): return [t.type]
    if isinstance(t, T.CallableType) and t.is_type_obj(): return [t.type_object()]
    if isinstance(t, T.CallableType): return [t.fallback.type]
    if isinstance(t, T.Overloaded):
        return [t.type_object()] if t.is_type_obj() else [t.fallback.type]
    if isinstance(t, T.TypeType): return infos(t.item)
    if isinstance(t, T.UnionType):
        out = []
        unknown = False
        for i in t.items:
            r = infos(i)
            if r is None: unknown = True
            else: out += r
        return out or (None if unknown else [])
    if isinstance(t, T.TypeVarType): return infos(t.upper_bound)
    if isinstance(t, (T.TupleType,)): return [t.partial_fallback.type]
    if isinstance(t, T.LiteralType): return [t.fallback.type]
    if isinstance(t, T.TypedDictType): return [t.fallback.type]
    if isinstance(t, T.NoneType): return []
    if isinstance(t, T.UninhabitedType): return None
    return None

def member_key(info: nodes.TypeInfo, name: str) -> str | None:
    for b in info.mro:
        k = f"{b.fullname}.{name}"
        if k in MEMBER: return k
    return None
def member_owner(info, name):
    for b in info.mro:
        if name in b.names: return b.fullname
    return None

edits: dict[pathlib.Path, dict[tuple[int, int], tuple[str, str]]] = collections.defaultdict(dict)
manual: list[str] = []
lines_cache: dict[pathlib.Path, list[str]] = {}
def lines(p):
    if p not in lines_cache: lines_cache[p] = p.read_text().split("\n")
    return lines_cache[p]
def edit(p, line, col, old, new, why=""):
    """line 1-based, col in characters."""
    text = lines(p)[line - 1]
    if text[col:col + len(old)] != old:
        # maybe byte offsets
        b = text.encode()[:col]
        c2 = len(b.decode(errors="ignore"))
        if text[c2:c2 + len(old)] == old: col = c2
        else:
            problems.append(f"{p}:{line}:{col}: expected {old!r}, found {text[col:col+20]!r} {why}"); return
    prev = edits[p].get((line, col))
    if prev and prev[1] != new: problems.append(f"{p}:{line}: two renames of {old}: {prev[1]} / {new}"); return
    edits[p][(line, col)] = (old, new)

# ---------------------------------------------------------------- member accesses through mypy
COMMON = {"append","get","items","keys","values","pop","update","add","remove","read","write","close","open","send","name","data","encode","decode","join","split","clear","copy","count","index","insert","extend","start","stop","run","put","set","result","cancel","wait","connect","publish","subscribe","request","ack","kill","poll","info","delete","create","find","last","first","limit","offset","seek","tell","flush","rows","columns","schema","field","type","value","key","size","length","time","parse","format","replace","strip","text","json","path","parts","exists","parent","stem","suffix","group","match","search","end","span","turn","take","give","say","told","held","keep","load","save","hold"}
DENY={"node","info","fullname","type","unanalyzed_type","analyzed","original_def","names","imports","alias_deps","plugin_deps","variables","type_override","def_or_infer_vars","original_first_arg","metaclass_type","unanalyzed_items","impl_ref","inferred_types","removed_base_type_exprs","overload","var_","current_info","unanalyzed_index_type","unanalyzed_items","tvar_scope","future_import_flags","removed_statements","partial_fallback"}
_attrs={}
def child_attrs(cls):
    if cls not in _attrs:
        out=[]
        for k in cls.__mro__:
            for n,v in vars(k).items():
                if type(v).__name__ in ("getset_descriptor","member_descriptor") and n not in DENY and n not in out: out.append(n)
        _attrs[cls]=out
    return _attrs[cls]
top_simple: dict[str, set[str]] = collections.defaultdict(set)
for full, new in TOP.items(): top_simple[full.rsplit(".", 1)[1]].add(new)
class V:
    def visit_mypy_file(self, tree):
        self.seen=set()
        for d in tree.defs: self.go(d)
    def go(self, n):
        if isinstance(n,(list,tuple)):
            for x in n: self.go(x)
            return
        if not isinstance(n,nodes.Node) or isinstance(n,(nodes.TypeInfo,nodes.MypyFile,nodes.SymbolNode)) and not isinstance(n,(nodes.FuncDef,nodes.Decorator,nodes.OverloadedFuncDef)): return
        if id(n) in self.seen: return
        self.seen.add(id(n))
        if isinstance(n,nodes.MemberExpr): self.member(n)
        elif isinstance(n,nodes.SuperExpr): self.visit_super_expr(n)
        elif isinstance(n,nodes.CallExpr): self.visit_call_expr(n)
        for a in child_attrs(type(n)):
            try: v=getattr(n,a)
            except AttributeError: continue
            if v is None or isinstance(v,(str,int,bool,bytes)): continue
            self.go(v)
    def __init__(self, mod, path):
        self.mod = mod; self.path = path
    def member(self, e):
        name = e.name
        if name not in mapped_names:
            if name in top_simple and not isinstance(e.node, nodes.MypyFile) and not (isinstance(e.expr, nodes.RefExpr) and isinstance(e.expr.node, nodes.MypyFile)):
                t = infos(res.types.get(e.expr))
                if (t is None or all(i.fullname in ("types.ModuleType", "types.SimpleNamespace") for i in t)) and len(top_simple[name]) == 1 and (name[0].isupper() or t) and name not in members_by_name:
                    edit(self.path, e.end_line, e.end_column - len(name), name, next(iter(top_simple[name])), "top guess")
                elif t is None and len(top_simple[name]) >= 1 and name not in COMMON: manual.append(f"{self.path.relative_to(ROOT)}:{e.line}: TOP .{name} {top_simple[name]} | {lines(self.path)[e.line-1].strip()[:100]}")
            return
        if e.kind is not None and isinstance(e.node, nodes.MypyFile): return
        if isinstance(e.expr, nodes.RefExpr) and isinstance(e.expr.node, nodes.MypyFile): return  # module attribute
        pos = (e.end_line, e.end_column - len(name)) if e.end_line else (e.line, e.column)
        t = res.types.get(e.expr)
        if isinstance(e.expr, nodes.RefExpr) and isinstance(e.expr.node, nodes.TypeInfo): inf = [e.expr.node]
        elif isinstance(e.expr, nodes.CallExpr) and isinstance(e.expr.callee, nodes.NameExpr) and e.expr.callee.name == "super": inf = None if t is None else infos(t)
        else: inf = infos(t)
        if inf is None: self.guess(e, name, pos); return
        new = {MEMBER[k] for i in inf if (k := member_key(i, name))}
        if len(new) > 1: problems.append(f"{self.path}:{e.line}: {name} on a union maps to {new}"); return
        if new: edit(self.path, pos[0], pos[1], name, new.pop())
        elif not any(member_owner(i, name) for i in inf): self.guess(e, name, pos)
    def visit_super_expr(self, e):
        name = e.name
        if name in mapped_names and e.info:
            for b in e.info.mro[1:]:
                k = f"{b.fullname}.{name}"
                if k in MEMBER:
                    edit(self.path, e.end_line, e.end_column - len(name), name, MEMBER[k]); break
    def guess(self, e, name, pos):
        news = mapped_names[name]
        owners = members_by_name[name]
        unmapped = [o for o in owners if not any(f"{b.fullname}.{name}" in MEMBER for b in allinfos[o].mro)]
        expr = ast_text(self.path, e)
        if len(news) == 1 and not unmapped and name not in COMMON:
            edit(self.path, pos[0], pos[1], name, next(iter(news)), "guess"); return
        manual.append(f"{self.path.relative_to(ROOT)}:{pos[0]}: .{name} unknown type; candidates {sorted(news)} | {lines(self.path)[pos[0]-1].strip()[:120]}")
    def visit_call_expr(self, c):
        callee = c.callee
        fulls: list[str] = []
        classes: list[nodes.TypeInfo] = []
        if isinstance(callee, nodes.IndexExpr): callee = callee.base
        if isinstance(callee, nodes.RefExpr):
            n = callee.node
            if isinstance(n, nodes.TypeInfo): classes = [n]
            elif isinstance(n, nodes.TypeAlias):
                pt = T.get_proper_type(n.target)
                if isinstance(pt, T.Instance): classes=[pt.type]
            elif n is not None and isinstance(callee, nodes.NameExpr): fulls = [getattr(n, "fullname", "")]
            elif callee.fullname and isinstance(callee, nodes.MemberExpr) and n is not None and not isinstance(n, nodes.Var): fulls = [callee.fullname]
        t = res.types.get(callee)
        pt = T.get_proper_type(t) if t is not None else None
        if isinstance(pt, T.CallableType) and pt.is_type_obj(): classes = classes or [pt.type_object()]
        if isinstance(callee, nodes.MemberExpr) and not fulls and not classes:
            inf = infos(res.types.get(callee.expr)) or []
            fulls = [f"{b.fullname}.{callee.name}" for i in inf for b in i.mro if callee.name in b.names]
        for cl in classes:
            fulls += [f"{b.fullname}.__init__" for b in cl.mro] + [f"{b.fullname}.__new__" for b in cl.mro]
        # getattr/setattr strings
        cname = callee.name if isinstance(callee, nodes.RefExpr) else ""
        if cname in ("getattr", "setattr", "hasattr", "delattr", "delattr", "object") and len(c.args) >= 2 and isinstance(c.args[1], nodes.StrExpr):
            target, s = c.args[0], c.args[1]
            new = None
            if isinstance(target, nodes.RefExpr) and isinstance(target.node, nodes.MypyFile):
                new = TOP.get(resolve_export(target.node.fullname, s.value))
            elif s.value in mapped_names:
                inf = [target.node] if isinstance(target, nodes.RefExpr) and isinstance(target.node, nodes.TypeInfo) else infos(res.types.get(target))
                for i in inf or []:
                    if k := member_key(i, s.value): new = MEMBER[k]
                if inf is None: manual.append(f"{self.path.relative_to(ROOT)}:{c.line}: {cname}(..., {s.value!r}) unknown type")
            if new: edit_string(self.path, s, new)
        fn = getattr(callee, "fullname", "")
        repl = None
        if fn in ("dataclasses.replace", "msgspec.structs.replace", "copy.replace") and c.args:
            repl = infos(res.types.get(c.args[0])) or []
        for i, an in enumerate(c.arg_names):
            if an is None: continue
            new = None
            for f in fulls:
                if (f, an) in ALLPARAMS: new = ALLPARAMS[(f, an)]; break
            if new is None:
                for cl in (repl if repl is not None else classes):
                    if k := member_key(cl, an): new = MEMBER[k]; break
            if new:
                a = c.args[i]
                edit_kwarg(self.path, a, an, new)

def ast_text(p, e):
    return lines(p)[e.line - 1].strip()[:100]
def edit_string(p, s, new):
    text = lines(p)[s.line - 1]
    at = text.find(s.value, s.column)
    if at < 0: problems.append(f"{p}:{s.line}: string {s.value} not found"); return
    edit(p, s.line, at, s.value, new)
def edit_kwarg(p, a, an, new):
    # the keyword stands before the argument expression, maybe on the same line
    ln, col = a.line, a.column
    for l in range(ln, max(ln - 3, 0), -1):
        text = lines(p)[l - 1]
        upto = text[:len(text.encode()[:col].decode(errors='ignore'))] if l == ln else text
        m = list(re.finditer(r"\b" + re.escape(an) + r"\s*=\s*[\(\s]*$", upto))
        if m: edit(p, l, m[-1].start(), an, new); return
    problems.append(f"{p}:{ln}: keyword {an} not found")

# ---------------------------------------------------------------- AST part: module-level symbols, definitions, params, locals
TREES: dict[str, ast.Module] = {}
PATHS: dict[str, pathlib.Path] = {}
for m, p in FILES.items():
    TREES[m] = ast.parse(p.read_text()); PATHS[m] = p
STUBTREES = {m: ast.parse(p.read_text()) for m, p in STUBS.items()}

def absolutize(mod, node: ast.ImportFrom) -> str:
    if not node.level: return (node.module or "").removeprefix("tests.")
    base = mod.split(".")
    if mod not in PACKAGES: base = base[:-1]
    base = base[: len(base) - (node.level - 1)]
    return ".".join(base + ([node.module] if node.module else []))

EXPORTS: dict[tuple[str, str], tuple[str, str]] = {}
def collect_exports(mod, tree):
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            src = absolutize(mod, n)
            pass
            for a in n.names: EXPORTS.setdefault((mod, a.asname or a.name), (src, a.name))
for m, t in {**TREES, **STUBTREES}.items():
    top = ast.Module(body=[x for x in t.body], type_ignores=[])
    for n in t.body:
        for sub in ([n] if not isinstance(n, (ast.If, ast.Try)) else ast.walk(n)):
            if isinstance(sub, ast.ImportFrom):
                src = absolutize(m, sub)
                for a in sub.names: EXPORTS.setdefault((m, a.asname or a.name), (src, a.name))
# the kernel's lazy exports
def resolve_export(mod, name, depth=0) -> str:
    if depth > 8: return f"{mod}.{name}"
    if f"{mod}.{name}" in TOP: return f"{mod}.{name}"
    nxt = EXPORTS.get((mod, name))
    if nxt:
        if f"{nxt[0]}.{nxt[1]}" in ALL: return f"{nxt[0]}.{nxt[1]}"
        return resolve_export(nxt[0], nxt[1], depth + 1)
    return f"{mod}.{name}"

ALLPARAMS: dict[tuple[str, str], str] = dict(PARAM)
def all_args(a: ast.arguments):
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]

class Scope:
    def __init__(self, node, parent, kind, qual):
        self.node, self.parent, self.kind, self.qual = node, parent, kind, qual
        self.bound: set[str] = set(); self.globals: set[str] = set(); self.imports: dict[str, tuple[str, str | None]] = {}
        self.names: list[ast.AST] = []   # Name nodes directly here
        self.children: list[Scope] = []

class Scoper(ast.NodeVisitor):
    def __init__(self, mod, tree):
        self.mod = mod
        self.root = self.cur = Scope(tree, None, "module", mod)
        for n in tree.body: self.visit(n)
    def bind(self, name): self.cur.bound.add(name)
    def visit_Name(self, n):
        self.cur.names.append(n)
        if isinstance(n.ctx, (ast.Store, ast.Del)): self.bind(n.id)
    def visit_Global(self, n): self.cur.globals.update(n.names)
    def visit_Nonlocal(self, n): self.cur.globals.update(n.names)
    def visit_Import(self, n):
        for a in n.names:
            self.bind(a.asname or a.name.split(".")[0])
            self.cur.imports[a.asname or a.name.split(".")[0]] = (a.name if a.asname else a.name.split(".")[0], None)
    def visit_ImportFrom(self, n):
        src = absolutize(self.mod, n)
        for a in n.names:
            self.bind(a.asname or a.name); self.cur.imports[a.asname or a.name] = (src, a.name)
    def visit_ExceptHandler(self, n):
        if n.name: self.bind(n.name); self.cur.names.append(n)
        self.generic_visit(n)
    def visit_MatchAs(self, n):
        if n.name: self.bind(n.name); self.cur.names.append(n)
        self.generic_visit(n)
    def visit_MatchStar(self, n):
        if n.name: self.bind(n.name); self.cur.names.append(n)
    def func(self, n, name):
        for d in getattr(n, "decorator_list", []): self.visit(d)
        a = n.args
        for d in [*a.defaults, *[k for k in a.kw_defaults if k]]: self.visit(d)
        for arg in all_args(a):
            if arg.annotation: self.visit(arg.annotation)
        if getattr(n, "returns", None): self.visit(n.returns)
        parent = self.cur
        self.cur = Scope(n, parent, "function", f"{parent.qual}.{name}"); parent.children.append(self.cur)
        for arg in all_args(a): self.bind(arg.arg); self.cur.names.append(arg)
        body = n.body if isinstance(n.body, list) else [n.body]
        for b in body: self.visit(b)
        self.cur = parent
    def visit_FunctionDef(self, n): self.bind(n.name); self.cur.names.append(n); self.func(n, n.name)
    visit_AsyncFunctionDef = visit_FunctionDef
    def visit_Lambda(self, n): self.func(n, "<lambda>")
    def visit_ClassDef(self, n):
        self.bind(n.name); self.cur.names.append(n)
        for d in [*n.decorator_list, *n.bases, *[k.value for k in n.keywords]]: self.visit(d)
        parent = self.cur
        self.cur = Scope(n, parent, "class", f"{parent.qual}.{n.name}"); parent.children.append(self.cur)
        for b in n.body: self.visit(b)
        self.cur = parent
    def comp(self, n, elts):
        first = n.generators[0]
        self.visit(first.iter)
        parent = self.cur
        self.cur = Scope(n, parent, "comp", parent.qual + ".<comp>"); parent.children.append(self.cur)
        for g in n.generators:
            self.visit(g.target)
            if g is not first: self.visit(g.iter)
            for i in g.ifs: self.visit(i)
        for e in elts: self.visit(e)
        self.cur = parent
    def visit_ListComp(self, n): self.comp(n, [n.elt])
    visit_SetComp = visit_GeneratorExp = visit_ListComp
    def visit_DictComp(self, n): self.comp(n, [n.key, n.value])
    def visit_NamedExpr(self, n):
        self.visit(n.value)
        s = self.cur
        while s.kind == "comp": s = s.parent
        s.bound.add(n.target.id); s.names.append(n.target)

def name_pos(p, node):
    """(name, line, col in chars) of the identifier token of a binding node."""
    if isinstance(node, ast.Name): return node.id, node.lineno, node.col_offset
    if isinstance(node, ast.arg): return node.arg, node.lineno, node.col_offset
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        ln = node.lineno
        text = lines(p)[ln - 1]
        m = re.compile(r"(?:async\s+def|def|class)\s+(" + re.escape(node.name) + r")\b").search(text)
        return node.name, ln, m.start(1)
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        ln = node.lineno
        text = lines(p)[ln - 1]
        pat = r"\bas\s+(" + re.escape(node.name) + r")\b" if not isinstance(node, ast.MatchStar) else r"\*\s*(" + re.escape(node.name) + r")\b"
        m = re.compile(pat).search(text, node.col_offset)
        if m: return node.name, ln, m.start(1)
        if isinstance(node, ast.MatchAs): return node.name, ln, node.col_offset
        problems.append(f"{p}:{ln}: no position for {node.name}"); return None
def put(p, node, new):
    r = name_pos(p, node)
    if r:
        name, ln, col = r
        text = lines(p)[ln - 1]
        col = len(text.encode()[:col].decode(errors="ignore")) if not text.isascii() and isinstance(node, (ast.Name, ast.arg)) else col
        edit(p, ln, col, name, new)

def resolve(scope: Scope, name: str) -> Scope | None:
    s = scope; first = True
    while s:
        if name in s.bound and name not in s.globals and (s.kind != "class" or first): return s
        first = False if s.kind != "comp" else first
        s = s.parent
    return None

def walk(scope):
    yield scope
    for c in scope.children: yield from walk(c)

SCOPES: dict[str, Scope] = {}
for m, t in {**TREES}.items(): SCOPES[m] = Scoper(m, t).root
STUBSCOPES = {m: Scoper(m, t).root for m, t in STUBTREES.items()}

def prefer(m, full): return full
# parameter tables
def param_rules(m, root):
    for s in walk(root):
        if s.kind != "function" or isinstance(s.node, ast.Lambda): continue
        for a in all_args(s.node.args):
            new = PARAM.get((s.qual, a.arg)) or LOCAL.get((m, a.arg))
            if new: ALLPARAMS[(s.qual, a.arg)] = new
for m, root in [*SCOPES.items(), *STUBSCOPES.items()]: param_rules(m, root)

def do_module(m, p, root, tree):
    pk = m
    # what each module-level / local import binding maps to
    for s in walk(root):
        rename: dict[str, str] = {}
        for name in s.bound:
            new = None
            if name in s.imports:
                src, orig = s.imports[name]
                if orig is not None and name == orig:
                    full = resolve_export(src, orig)
                    if full in TOP: new = TOP[full]
            elif s.kind == "module" and f"{m}.{name}" in TOP: new = TOP[f"{m}.{name}"]
            elif s.kind == "class" and f"{s.qual}.{name}" in MEMBER: new = MEMBER[f"{s.qual}.{name}"]
            elif s.kind == "class":
                info = allinfos.get(s.qual)
                if info:
                    k = member_key(info, name)
                    if k: new = MEMBER[k]
            elif s.kind in ("function", "comp"):
                q = s.qual
                if s.kind == "function" and (q, name) in ALLPARAMS: new = ALLPARAMS[(q, name)]
                elif (m, name) in LOCAL: new = LOCAL[(m, name)]
                elif s.kind == "function" and not isinstance(s.node, ast.Lambda) and (q, name) in PARAM: new = PARAM[(q, name)]
            if new and new != name:
                rename[name] = new
        for name, new in rename.items():
            if new in s.bound and new not in rename:
                problems.append(f"{p.relative_to(ROOT)}: scope {s.qual}: {name} -> {new} collides with a name bound there")
            if hasattr(builtins, new) and s.kind != "class": problems.append(f"{p.relative_to(ROOT)}: {s.qual}: {name} -> {new} shadows a builtin")
        s.rename = rename  # type: ignore
    # class attribute definitions reached through inheritance are handled above; now apply
    for s in walk(root):
        for node in s.names:
            nm = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else node.name
            home = resolve(s, nm) if nm not in s.globals else None
            if nm in s.globals:
                q = s.parent
                while q and not (nm in q.bound and q.kind in ("function", "module")): q = q.parent
                home = q
            if home and nm in home.rename: put(p, node, home.rename[nm])
            elif home is None and nm: pass
            # shadow check: renamed target captured by inner binding
            if home and nm in home.rename:
                new = home.rename[nm]; t = s
                while t is not home:
                    if new in t.bound and new not in getattr(t, "rename", {}) and (t.kind != "class"): problems.append(f"{p.relative_to(ROOT)}:{getattr(node,'lineno',0)}: {nm} -> {new} is shadowed in {t.qual}"); break
                    if any(v == new and True for k, v in getattr(t, "rename", {}).items()) : problems.append(f"{p.relative_to(ROOT)}:{getattr(node,'lineno',0)}: {nm} -> {new} is shadowed by a rename in {t.qual}"); break
                    t = t.parent
    # import statements, __all__, __slots__, global statements, module attributes, string annotations
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            src = absolutize(m, n)
            for a in n.names:
                full = resolve_export(src, a.name)
                if full in TOP: edit_in(p, n, a, a.name, TOP[full])
        elif isinstance(n, (ast.Global, ast.Nonlocal)):
            for nm in n.names:
                if (m, nm) in LOCAL or f"{m}.{nm}" in TOP:
                    new = LOCAL.get((m, nm)) if isinstance(n, ast.Nonlocal) else TOP.get(f"{m}.{nm}")
                    if new:
                        text = lines(p)[n.lineno - 1]; mm = re.search(r"\b" + nm + r"\b", text)
                        edit(p, n.lineno, mm.start(), nm, new)
        elif isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets):
            for e in ast.walk(n.value):
                if isinstance(e, ast.Constant) and isinstance(e.value, str):
                    full = resolve_export(m, e.value)
                    if full in TOP: string_edit(p, e, e.value, TOP[full])
        elif isinstance(n, ast.ClassDef):
            for b in n.body:
                if isinstance(b, ast.Assign) and any(isinstance(t, ast.Name) and t.id in ("__slots__", "__match_args__") for t in b.targets):
                    q = class_qual(m, tree, n); info = allinfos.get(q)
                    for e in ast.walk(b.value):
                        if isinstance(e, ast.Constant) and isinstance(e.value, str):
                            new = MEMBER.get(f"{q}.{e.value}") or (MEMBER.get(member_key(info, e.value) or "") if info else None)
                            if new: string_edit(p, e, e.value, new)
    for s in walk(root): 
        pass
    attr_modules(m, p, root, tree)
    annotations_as_strings(m, p, root, tree)

def class_qual(m, tree, node):
    def find(body, q):
        for b in body:
            if b is node: return f"{q}.{node.name}"
            if isinstance(b, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                r = find(b.body, f"{q}.{b.name}")
                if r: return r
            elif isinstance(b, (ast.If, ast.Try)):
                r = find(b.body, q) or find(b.orelse, q)
                if r: return r
    return find(tree.body, m)

def edit_in(p, n, a, old, new):
    ln, col = a.lineno, a.col_offset
    edit(p, ln, col, old, new)
    if a.asname == a.name: edit(p, a.end_lineno, a.end_col_offset - len(old), old, new)
def string_edit(p, e, old, new):
    text = lines(p)[e.lineno - 1]; at = text.find(old, e.col_offset)
    edit(p, e.lineno, at, old, new)

def attr_modules(m, p, root, tree):
    # module attributes: name bound to a module
    class W(ast.NodeVisitor):
        pass
    owner: dict[ast.AST, Scope] = {}
    for s in walk(root):
        for nd in s.names:
            if isinstance(nd, ast.Name): owner[nd] = s
    def module_of(expr) -> str | None:
        if isinstance(expr, ast.Name):
            s = owner.get(expr); 
            if s is None: return None
            home = resolve(s, expr.id)
            if home and expr.id in home.imports:
                src, orig = home.imports[expr.id]
                if orig is None: return src if src in ALL or src == "headrace" else None
                cand = f"{src}.{orig}"
                if cand in ALL: return cand
                r = resolve_export(src, orig)
                return r if r in ALL else None
            return None
        if isinstance(expr, ast.Attribute):
            b = module_of(expr.value)
            if b and f"{b}.{expr.attr}" in ALL: return f"{b}.{expr.attr}"
        return None
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute):
            b = module_of(n.value)
            if b:
                full = resolve_export(b, n.attr)
                if full in TOP:
                    text = lines(p)[n.end_lineno - 1]
                    col = len(text.encode()[: n.end_col_offset].decode(errors="ignore")) - len(n.attr)
                    edit(p, n.end_lineno, col, n.attr, TOP[full])

def annotations_as_strings(m, p, root, tree):
    def fix(c: ast.Constant):
        def sub(mm):
            nm = mm.group(0)
            if nm in root.bound:
                r = getattr(root, "rename", {}).get(nm)
                if r: return r
            return nm
        new = re.sub(r"[A-Za-z_]\w*", sub, c.value)
        if new != c.value and c.lineno == c.end_lineno: string_edit(p, c, c.value, new)
    for n in ast.walk(tree):
        if isinstance(n, ast.Call):
            f = n.func
            fname = f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else ""
            if fname == "cast" and n.args and isinstance(n.args[0], ast.Constant) and isinstance(n.args[0].value, str): fix(n.args[0])
            if fname == "TypeVar":
                for k in n.keywords:
                    if isinstance(k.value, ast.Constant) and isinstance(k.value.value, str): fix(k.value)
        anns = []
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            anns = [a.annotation for a in all_args(n.args) if a.annotation] + ([n.returns] if n.returns else [])
        elif isinstance(n, ast.AnnAssign): anns = [n.annotation]
        for a in anns:
            for c in ast.walk(a):
                if isinstance(c, ast.Constant) and isinstance(c.value, str): fix(c)

for m, p in FILES.items():
    if m in STUBS: continue
    do_module(m, p, SCOPES[m], TREES[m])
for m, p in STUBS.items(): do_module(m, p, STUBSCOPES[m], STUBTREES[m])

for m, st in res.graph.items():
    p = ALL.get(m)
    if p is None or st.tree is None: continue
    if m in STUBS and pathlib.Path(st.path).suffix == ".pyi": continue
    if pathlib.Path(st.path).resolve() != p: continue
    V(m, p).visit_mypy_file(st.tree)

# ---------------------------------------------------------------- apply
n = 0
for p, es in edits.items():
    ls = lines(p)
    for (ln, col), (old, new) in sorted(es.items(), reverse=True):
        t = ls[ln - 1]
        ls[ln - 1] = t[:col] + new + t[col + len(old):]; n += 1
    if not DRY: p.write_text("\n".join(ls))
out = pathlib.Path("out/rename"); out.mkdir(parents=True, exist_ok=True)
(out / "problems.txt").write_text("\n".join(problems) + "\n"); (out / "manual.txt").write_text("\n".join(manual) + "\n")
(out / "kwords.json").write_text(json.dumps(KWORDS, indent=1)); (out / "public.json").write_text(json.dumps(PUBLIC, indent=1))
(out / "map.json").write_text(json.dumps({"top": TOP, "member": MEMBER}, indent=0))
print(n, "edits in", len(edits), "files;", len(problems), "problems;", len(manual), "manual")
