import json,re,pathlib,sys
root=pathlib.Path(sys.argv[1]); kw=json.load(open('out/rename/kwords.json'))
for m,words in kw.items():
    base=root/'src'/m.replace('.','/')
    pat=re.compile(r'(?<!\w)(?:'+'|'.join(map(re.escape,sorted(words,key=len,reverse=True)))+r')(?!\w)')
    for suf in ('.pyx','.pxd','_pure.py'):
        p=pathlib.Path(str(base)+suf)
        if p.exists(): p.write_text(pat.sub(lambda x: words[x.group(0)],p.read_text()))
