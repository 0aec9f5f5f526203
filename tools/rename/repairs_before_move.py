"""By-hand repairs after the symbol pass, on old paths. Each: file, old, new (exact; reports if missing)."""
import sys,pathlib,re
root=pathlib.Path(sys.argv[1])/'src/headrace'
def fix(f,*pairs,count=None):
    p=root/f
    s=p.read_text()
    for a,b in pairs:
        if a not in s: print('MISSING',f,repr(a)); continue
        s=s.replace(a,b)
    p.write_text(s)
fix('monitor/http.py',('"Answer | Awaitable[Answer]"','"HttpResponse | Awaitable[HttpResponse]"'))
fix('spark/wire.py',('partial(_look, at=next_seq)','partial(_look, next_seq=next_seq)'))
fix('broker/door.py',('Callable[["JetStream", ApiRequest]','Callable[["AccountJetStream", ApiRequest]'))
fix('sim/storeworld.py',('Callable[["StoreWorld"]','Callable[["StoreSimulation"]'))
fix('broker/advisories.py',('session.owner.','session.transport.'))
fix('broker/exchange.py',('session.owner.','session.transport.'))
fix('broker/lanes.py',('sub.limit or','sub.max_msgs or'),('sub.peer for','sub.client for'),('for peer in peers','for client in clients'),('(peers: Iterable','(clients: Iterable'),('if peer.blocked or len(peer.out) + peer.chunk_bytes','if client.blocked or len(client.buffer) + client.chunk_bytes'),('return peer\n','return client\n'),('One of the peers','One of the clients'))
fix('broker/domains.py',('subscriber.offer(','subscriber.on_message('))
fix('broker/leaf.py',('subscriber.offer(','subscriber.on_message('))
fix('broker/session.py',('if sub.peer is self','if sub.client is self'))
fix('net/outflow.py',('session.out)','session.buffer)'),('session.owner.','session.transport.'),('[0].out)','[0].buffer)'))
fix('net/listener.py',('session.owner.','session.transport.'))
fix('sim/host.py',('session.owner.say()','session.transport.flush_output()'))
fix('sim/world.py',('log.seqs(','log.find_seqs('))
s=(root/'store/records.py').read_text()
names=re.findall(r'^    "(\w+)",$',s,flags=re.M)
i=s.index('    _records = load_native'); j=s.index('__all__')
body='    _records = load_native("records")\n'+''.join(f'    {n} = _records.{n}\n' for n in names if n!='Array')+'\n'
(root/'store/records.py').write_text(s[:i]+body+s[j:])
fix('cli/link.py',('each.name != "link"','each.name != "session"'))
fix('claims/records.py',('revision: int, told_ns: int)','revision: int, updated_ns: int)'),('updated_ns=told_ns','updated_ns=updated_ns'))
fix('kernel/__init__.py',
 ('"answers": ("answer", "answers", "newest")','"direct_get": ("encode_reply", "encode_replies", "encode_last_by_subject")'),
 ('"arrivals": ("Pool", "Staged", "Window", "nats_headers")','"ingest_state": ("ByteBudget", "OpenBatch", "DedupWindow", "parse_nats_headers")'),
 ('"checksum": ("crc32",)','"crc32": ("crc32",)'),
 ('"delivery": ("ack_parts", "encode", "subjects_of")','"deliveries": ("split_ack_subject", "encode_deliveries", "collect_subjects")'),
 ('"lanes": ("Lane", "Outbox")','"publish_fastpath": ("PublishFastPath", "PendingReplies")'),
 ('"wire": ("Parser", "Peer", "Route", "RouteTable", "Subscription")','"parser": ("Parser", "ClientState", "Route", "RouteTable", "Subscription")'),
 ('load_native("wire")','load_native("parser")'))
fix('protocol/archives.py',('load_native("blocks")','load_native("snappy")'))
fix('spark/chunks.py',('load_native("frames").publishes','load_native("reply_scanner").encode_publishes'))
fix('spark/blocks.py',('load_native("frames")','load_native("reply_scanner")'))
s=(root/'spark/blocks.py').read_text()
s=s.replace('_kernel.WIDTH','_native.FIELDS_PER_MESSAGE').replace('_kernel.Frames','_native.ReplyScanner').replace('_kernel = ','_native = ')
(root/'spark/blocks.py').write_text(s)
fix('cli/app.py',('"commands",','"local_commands",'))
