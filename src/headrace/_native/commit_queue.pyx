# cython: language_level=3
"""The commit queue, compiled: its thread writes and syncs files without the GIL.

Owns the submissions from `submit` until `take_completed` returns them, with the buffers that they write. Invariant:
submissions run in order, one at a time; the first step that fails ends its submission; a submission counts as completed
only after its last step has returned. Must not know what the bytes mean, nor which files the descriptors belong to.
The pure version is `commit_queue_pure`; the same tests run on both. See ADR 66.
"""

from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    #include <fcntl.h>
    #include <pthread.h>
    #include <sys/types.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>
    static int hr_sync_data(int fd) {
    #ifdef __APPLE__
        return fcntl(fd, F_FULLFSYNC);  /* fsync does not reach the medium */
    #else
        return fdatasync(fd);
    #endif
    }
    static void hr_start_write_back(int fd, off_t offset, off_t size) {
    #ifdef __linux__
        /* Waits for nothing and takes no error: the next sync reports it. */
        sync_file_range(fd, offset, size, SYNC_FILE_RANGE_WRITE);
    #endif
    }
    """
    ctypedef long off_t
    struct iovec:
        void *iov_base
        size_t iov_len
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int hr_sync_data(int fd) nogil
    void hr_start_write_back(int fd, off_t offset, off_t size) nogil
    Py_ssize_t pwritev(int fd, const iovec *vectors, int count, off_t offset) nogil
    Py_ssize_t write(int fd, const void *data, size_t size) nogil
    int clock_gettime(int clock, timespec *now) nogil
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes) nogil
    int pthread_mutex_destroy(pthread_mutex_t *mutex) nogil
    int pthread_mutex_lock(pthread_mutex_t *mutex) nogil
    int pthread_mutex_unlock(pthread_mutex_t *mutex) nogil
    int pthread_cond_init(pthread_cond_t *condition, void *attributes) nogil
    int pthread_cond_destroy(pthread_cond_t *condition) nogil
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) nogil
    int pthread_cond_signal(pthread_cond_t *condition) nogil
    int pthread_cond_broadcast(pthread_cond_t *condition) nogil

cdef enum:
    VECTORS_MAX = 512  # of one call; systems allow 1024
    PART_BYTES = 1048576  # of one call, about: the disk writes a part while the next one is copied
    PAGE_BYTES = 4096

cdef struct Step:
    int fd
    int64_t offset  # negative: sync instead of write
    Py_ssize_t first_vector
    Py_ssize_t vector_count

cdef struct Job:
    Step *steps
    Py_ssize_t step_count
    iovec *vectors
    void *submission  # the owner, for a job that is a call
    bint is_call
    Py_ssize_t failed_step
    int error_number
    int64_t duration_ns
    Job *next


cdef int64_t _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef int _count_part(const iovec *vectors, Py_ssize_t count) noexcept nogil:
    """Return how many vectors to write with one call."""
    cdef int at, count_max = <int>min(count, VECTORS_MAX)
    cdef size_t size = 0
    for at in range(count_max):
        size += vectors[at].iov_len
        if size >= PART_BYTES:
            return at + 1
    return count_max


cdef int _write_all(int fd, iovec *vectors, Py_ssize_t count, int64_t offset) noexcept nogil:
    """Write all vectors, which are used up; return 0 or the number of the error. A short write is continued.

    The disk gets each large part at once, in whole pages: the sync that follows waits for less.
    """
    cdef Py_ssize_t done
    while count:
        done = pwritev(fd, vectors, _count_part(vectors, count), <off_t>offset)
        if done < 0:
            if errno == EINTR:
                continue
            return errno
        if done == 0 and vectors.iov_len:
            return EIO  # a file that takes nothing: never loop
        if done >= PART_BYTES:
            hr_start_write_back(fd, <off_t>offset, <off_t>((offset + done) // PAGE_BYTES * PAGE_BYTES - offset))
        offset += done
        while count and <size_t>done >= vectors.iov_len:
            done -= vectors.iov_len
            vectors += 1
            count -= 1
        if count and done:
            vectors.iov_base = <char *>vectors.iov_base + done
            vectors.iov_len -= done
    return 0


cdef int _sync(int fd) noexcept nogil:
    while hr_sync_data(fd) < 0:
        if errno != EINTR:
            return errno
    return 0


cdef void _run_steps(Job *job) noexcept nogil:
    cdef Py_ssize_t at
    cdef Step *step
    cdef int error_number
    for at in range(job.step_count):
        step = job.steps + at
        if step.offset < 0:
            error_number = _sync(step.fd)
        else:
            error_number = _write_all(
                step.fd, job.vectors + step.first_vector, step.vector_count, step.offset
            )
        if error_number:
            job.failed_step, job.error_number = at, error_number
            return


cdef class _Submission:
    """A job with everything that it refers to."""
    cdef Job job
    cdef Py_buffer *buffers
    cdef Py_ssize_t buffer_count
    cdef object token
    cdef object call
    cdef object exception

    def __dealloc__(self):
        self._release()

    cdef void _release(self) noexcept:
        cdef Py_ssize_t at
        for at in range(self.buffer_count):
            PyBuffer_Release(self.buffers + at)
        self.buffer_count = 0
        free(self.buffers)
        free(self.job.vectors)
        free(self.job.steps)
        self.buffers, self.job.vectors, self.job.steps = NULL, NULL, NULL

    cdef _add_steps(self, list steps):
        cdef Py_ssize_t total = 0, at
        for _, _, pieces in steps:
            total += len(pieces)
        self.job.steps = <Step *>calloc(len(steps) + 1, sizeof(Step))
        self.job.vectors = <iovec *>calloc(total + 1, sizeof(iovec))
        self.buffers = <Py_buffer *>calloc(total + 1, sizeof(Py_buffer))
        if not self.job.steps or not self.job.vectors or not self.buffers:
            raise MemoryError()
        for at, (fd, offset, pieces) in enumerate(steps):
            self.job.steps[at].fd, self.job.steps[at].offset = fd, offset
            self.job.steps[at].first_vector = self.buffer_count
            self.job.steps[at].vector_count = len(pieces)
            for piece in pieces:
                self._add_piece(piece)
        self.job.step_count = len(steps)

    cdef _add_piece(self, object piece):
        cdef Py_buffer *buffer = self.buffers + self.buffer_count
        PyObject_GetBuffer(piece, buffer, PyBUF_SIMPLE)
        self.job.vectors[self.buffer_count].iov_base = buffer.buf
        self.job.vectors[self.buffer_count].iov_len = buffer.len
        self.buffer_count += 1

    cdef void _run_call(self) noexcept:
        try:
            steps = self.call()
            if steps:
                self._add_steps(steps)
        except BaseException as failed:
            self.exception = failed


cdef class CommitQueue:
    """Submissions for one thread, which calls `run`.

    After each completion the thread writes 8 bytes to `wakeup_fd`, if it is not negative, and calls `notify`, if it is
    not None; a call needs the GIL.
    """
    cdef pthread_mutex_t _mutex
    cdef pthread_cond_t _submitted
    cdef pthread_cond_t _completed
    cdef Job *_head
    cdef Job *_tail
    cdef Py_ssize_t _completed_count
    cdef bint _closed
    cdef int _wakeup_fd
    cdef bint _has_notify
    cdef object _notify
    cdef object _submissions

    def __cinit__(self, int wakeup_fd=-1, notify=None):
        pthread_mutex_init(&self._mutex, NULL)
        pthread_cond_init(&self._submitted, NULL)
        pthread_cond_init(&self._completed, NULL)
        self._wakeup_fd = wakeup_fd
        self._notify = notify
        self._has_notify = notify is not None
        self._submissions = deque()

    def __dealloc__(self):
        pthread_cond_destroy(&self._completed)
        pthread_cond_destroy(&self._submitted)
        pthread_mutex_destroy(&self._mutex)

    def __len__(self):
        """Return the number of submissions that `take_completed` has not returned."""
        return len(self._submissions)

    def submit(self, list steps, token):
        """Queue steps: (fd, offset, list of buffers) writes, (fd, -1, ()) syncs. `token` comes back with the result."""
        cdef _Submission submission = _Submission()
        submission.token = token
        submission._add_steps(steps)
        self._push(submission)

    def submit_call(self, call, token):
        """Queue a call; the thread makes it with the GIL. If it returns steps, these run next, without the GIL."""
        cdef _Submission submission = _Submission()
        submission.token, submission.call = token, call
        submission.job.is_call = True
        submission.job.submission = <void *>submission
        self._push(submission)

    cdef _push(self, _Submission submission):
        cdef Job *job = &submission.job
        job.failed_step = -1
        self._submissions.append(submission)
        pthread_mutex_lock(&self._mutex)
        if self._tail is NULL:
            self._head = job
        else:
            self._tail.next = job
        self._tail = job
        pthread_mutex_unlock(&self._mutex)
        pthread_cond_signal(&self._submitted)  # not before: the thread would wake up to wait for the mutex

    def run(self):
        """Run submissions until the queue is closed and empty: the function of the queue's thread."""
        with nogil:
            self._run()

    cdef void _run(self) noexcept nogil:
        cdef Job *job
        while True:
            job = self._wait_for_job()
            if job is NULL:
                return
            self._run_job(job)
            pthread_mutex_lock(&self._mutex)
            self._completed_count += 1  # from here on the job may be freed
            pthread_cond_broadcast(&self._completed)
            pthread_mutex_unlock(&self._mutex)
            self._wake()

    cdef Job *_wait_for_job(self) noexcept nogil:
        cdef Job *job
        pthread_mutex_lock(&self._mutex)
        while self._head is NULL and not self._closed:
            pthread_cond_wait(&self._submitted, &self._mutex)
        job = self._head
        if job is not NULL:
            self._head = job.next
            if self._head is NULL:
                self._tail = NULL
        pthread_mutex_unlock(&self._mutex)
        return job

    cdef void _run_job(self, Job *job) noexcept nogil:
        cdef int64_t started_ns = _now_ns()
        if job.is_call:
            with gil:
                (<_Submission>job.submission)._run_call()
        _run_steps(job)
        job.duration_ns = _now_ns() - started_ns

    cdef void _wake(self) noexcept nogil:
        cdef int64_t one = 1
        if self._wakeup_fd >= 0:
            write(self._wakeup_fd, &one, sizeof(one))  # full only if the reader has not seen earlier ones
        if self._has_notify:
            with gil:
                self._notify()

    def take_completed(self):
        """Return the completed submissions, in order: (token, duration in ns, failed step or -1, errno, exception)."""
        cdef Py_ssize_t count
        cdef _Submission submission
        pthread_mutex_lock(&self._mutex)
        count = self._completed_count
        self._completed_count = 0
        pthread_mutex_unlock(&self._mutex)
        found = []
        for _ in range(count):
            submission = self._submissions.popleft()
            found.append((
                submission.token,
                submission.job.duration_ns,
                submission.job.failed_step,
                submission.job.error_number,
                submission.exception,
            ))
            submission._release()
        return found

    def wait(self):
        """Wait until a submission is completed and not taken; return at once if none is queued."""
        if not self._submissions:
            return
        with nogil:
            pthread_mutex_lock(&self._mutex)
            while self._completed_count == 0:
                pthread_cond_wait(&self._completed, &self._mutex)
            pthread_mutex_unlock(&self._mutex)

    def close(self):
        """Let `run` return once everything submitted has run."""
        pthread_mutex_lock(&self._mutex)
        self._closed = True
        pthread_cond_broadcast(&self._submitted)
        pthread_mutex_unlock(&self._mutex)
