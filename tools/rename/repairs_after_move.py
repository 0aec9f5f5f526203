"""Repairs after the moves."""
import sys,pathlib
root=pathlib.Path(sys.argv[1])
def fix(f,*pairs):
    p=root/f; s=p.read_text()
    for a,b in pairs:
        if a not in s: print('MISSING',f,repr(a)); continue
        s=s.replace(a,b)
    p.write_text(s)
fix('src/headrace/sim/workloads/claim_actors.py',('def _kill_instead(self, entry: ClaimEntry, keep_s: float)','def _kill_instead(self, entry: ClaimEntry, ttl_s: float)'))
fix('tests/unit/test_server.py')
import subprocess
j=root/'src/headrace/api/errors.json'
if j.exists(): subprocess.check_call(['git','mv',str(j),str(root/'src/headrace/jetstream_api/errors.json')],cwd=root)
