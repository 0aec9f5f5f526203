import sys,re,pathlib,subprocess,collections
root=pathlib.Path(sys.argv[1])
moves=[];imports=[];texts=[]
for line in open(pathlib.Path(__file__).with_name('tests.txt')):
    line=line.rstrip('\n')
    if line.startswith('# import '):
        f,rest=line[len('# import '):].split(': ',1); old,new=rest.split(' -> ',1); imports.append((f,old.strip(),new.strip()))
    elif line.startswith('# text '):
        m=re.match(r'# text (\S+?):(\d+) (\S+) (\S+)',line)
        if m: texts.append((m[1],int(m[2]),m[3],m[4]))
    elif line.startswith('#') or not line.strip(): continue
    else: moves.append(tuple(line.split()[:2]))
for line in open(pathlib.Path(__file__).with_name('tests_extra.txt')):
    if line.strip(): moves.append(tuple(line.split()[:2]))
# other files which import moved helpers but are not listed (new since)
for f,old,new in imports:
    p=root/f
    if not p.exists(): print('no file',f); continue
    s=p.read_text(); note=''
    new=re.sub(r' \(and its uses.*','',new)
    if old not in s: print('import not found',f,old); continue
    s=s.replace(old,new)
    mo=re.fullmatch(r'from (\S+) import (\w+)',old); mn=re.fullmatch(r'from (\S+) import (\w+)',new)
    if mo and mn and mo[2]!=mn[2]: s=re.sub(r'\b'+mo[2]+r'\.',mn[2]+'.',s)
    p.write_text(s)
for f,ln,old,new in texts:
    p=root/f
    if not p.exists(): continue
    L=p.read_text().split('\n'); hit=False
    for i in range(max(0,ln-4),min(len(L),ln+3)):
        if old in L[i]: L[i]=L[i].replace(old,new); hit=True; break
    if hit: p.write_text('\n'.join(L))
    else: print('text not found',f,ln,old)
names=collections.defaultdict(dict)
for line in open(pathlib.Path(__file__).with_name('test_names.tsv')):
    if line.startswith('#') or not line.strip(): continue
    a,b=line.rstrip('\n').split('\t')[:2]; f,o=a.split('::',1); names[f][o.split('::')[-1]]=b.strip()
for f,d in names.items():
    p=root/f
    if not p.exists(): print('no file',f); continue
    s=p.read_text()
    for o,n in d.items():
        if re.search(r'def '+n+r'\b',s): print('name exists',f,n); continue
        s2=re.sub(r'\bdef '+o+r'\b','def '+n,s)
        if s2==s: print('no test',f,o)
        s=s2
    p.write_text(s)
seen=set()
for a,b in moves:
    p=root/a
    if not p.exists(): print('no file',a); continue
    (root/b).parent.mkdir(parents=True,exist_ok=True)
    if (root/b).exists() and b not in {x for x,_ in moves}: print('target exists',b); continue
    subprocess.check_call(['git','mv','-k',a,b+'.moving'],cwd=root); seen.add(b)
for b in seen:
    if (root/(b+'.moving')).exists(): subprocess.check_call(['git','mv',b+'.moving',b],cwd=root)
for d in ('tests/unit/storage/fsck',):
    (root/d).mkdir(parents=True,exist_ok=True); (root/d/'__init__.py').touch()
