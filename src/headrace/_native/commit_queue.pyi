from headrace._native.commit_queue_pure import CommitQueue as CommitQueue
