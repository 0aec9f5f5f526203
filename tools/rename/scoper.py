def all_args(a):
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]
class Scope:
    def __init__(self, node, parent, kind, qual):
        self.node, self.parent, self.kind, self.qual = node, parent, kind, qual
        self.bound: set[str] = set(); self.globals: set[str] = set(); self.imports: dict[str, tuple[str, str | None]] = {}
        self.names: list[ast.AST] = []   # Name nodes directly here
        self.children: list[Scope] = []; self.importnodes = []

class Scoper(ast.NodeVisitor):
    def __init__(self, mod, is_pkg, tree):
        self.mod = mod; self.is_pkg = is_pkg
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
        src = n.module or ""
        self.cur.importnodes.append(n)
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

