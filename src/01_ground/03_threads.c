/* ==========================================================================
 * >>01.03 THREADS: one parallel loop
 * ==========================================================================
 * The engine knows one parallel construct: run task(ctx, i) for i = 0 ... n-1
 * and wait. Nothing that a task computes may depend on which thread runs it
 * or when, so results are the same for every thread count, and the caller may
 * put an own job system in our place (dend_jobs).
 *
 * Own threads wait in two stages. After a loop they spin for about 100 us,
 * because the next loop of a step follows within microseconds; then they park
 * on a condition variable, so that an idle engine costs nothing.
 *
 *     left    tasks that nobody has claimed      done    tasks that are finished
 *
 * A task is claimed by lowering `left` by one. The caller works too, and waits
 * for tasks, not for threads: a worker that the system has put aside holds
 * nobody up unless it sits on a task. Whoever has claimed a task keeps its loop
 * from ending, and so may read what the loop is about (task, ctx, n_tasks) from
 * then on, and not before; for the same reason it does no harm when a worker
 * that comes late claims a task of the next loop.
 *
 * SLICES.  A loop may be left half done: the caller looks at the clock before
 * each task of its own, and when the time is up takes what nobody has claimed
 * out of `left`. Tasks begin in ascending order, so the first one that has not
 * run says all about where the loop stands. An operation of several loops keeps
 * that in a dendp_slices: to go on, the same code runs again, and the loops that
 * are through answer at once. What is late is late by a task, hence tasks of
 * sliced loops should be short.
 * ======================================================================== */

typedef void (*dendp_task)(void *ctx, uint32_t index);

#define DENDP_MAX_THREADS 256
#define DENDP_STACK (1u << 20) /* of a worker: tasks take 160 KB at most, and some systems give 128 */
#define DENDP_SPINS 4000       /* pauses of about 25 ns before a worker parks */

typedef struct dendp_pool {
    dend_jobs jobs; /* jobs.run set: the caller's job system does it all */
    uint32_t n_threads;
    dendp_task task;
    void *ctx;
    uint32_t n_tasks;
    /* Each of these is written by many threads: a line of its own. */
    uint32_t left, pad0_[15];
    uint32_t done, pad1_[15];
    uint32_t n_parked, stop;
#if DENDP_THREADS
    uint32_t n_started;
    dendp_mutex mutex;
    dendp_condition wake;
    dendp_thread threads[DENDP_MAX_THREADS];
#endif
} dendp_pool;

/* How far an operation of several loops has come, and until when it may run. */
typedef struct dendp_slices {
    uint64_t deadline_ns; /* 0 = none */
    uint32_t stop;        /* set by any thread: as if the time were up */
    uint32_t n_through;   /* loops of the operation that are through */
    uint32_t next;        /* first task of the next loop that has not run */
    uint32_t at;          /* loop that the code stands at */
} dendp_slices;

static bool dendp_slices_late(dendp_slices *s) {
    return dendp_atomic_load(&s->stop) != 0 || (s->deadline_ns && dendp_now_ns() >= s->deadline_ns);
}

/* The operation is through. */
static bool dendp_slices_end(dendp_slices *s) {
    s->n_through = s->next = s->at = 0;
    return true;
}

#if DENDP_THREADS
/* Claims and runs tasks until none is left. Claims go from the last to the
 * first, indices from the first to the last: memory is read upwards. */
static void dendp_pool_work(dendp_pool *pool) {
    uint32_t left = dendp_atomic_load(&pool->left);
    while (left > 0) {
        if (dendp_atomic_swap_if(&pool->left, &left, left - 1)) {
            pool->task(pool->ctx, pool->n_tasks - left);
            dendp_atomic_add(&pool->done, 1);
            left = dendp_atomic_load(&pool->left);
        }
    }
}

/* The same, until the slices are late: then nobody claims any more. Returns how many tasks nobody has claimed. */
static uint32_t dendp_pool_work_until(dendp_pool *pool, dendp_slices *s) {
    uint32_t left = dendp_atomic_load(&pool->left);
    bool late = false;
    while (left > 0) {
        if (dendp_atomic_swap_if(&pool->left, &left, late ? 0 : left - 1)) {
            if (late) {
                return left;
            }
            pool->task(pool->ctx, pool->n_tasks - left);
            dendp_atomic_add(&pool->done, 1);
            late = dendp_slices_late(s);
            left = dendp_atomic_load(&pool->left);
        }
    }
    return 0;
}

static DENDP_THREAD_MAIN dendp_pool_main(void *arg) {
    dendp_pool *pool = (dendp_pool *)arg;
    while (!dendp_atomic_load(&pool->stop)) {
        uint32_t spins = 0;
        while (dendp_atomic_load(&pool->left) == 0 && spins < DENDP_SPINS) {
            dendp_pause();
            spins++;
        }
        if (spins == DENDP_SPINS) {
            dendp_mutex_lock(&pool->mutex);
            dendp_atomic_add(&pool->n_parked, 1);
            while (dendp_atomic_add(&pool->left, 0) == 0 && !dendp_atomic_load(&pool->stop)) {
                dendp_condition_wait(&pool->wake, &pool->mutex);
            }
            dendp_atomic_add(&pool->n_parked, UINT32_MAX);
            dendp_mutex_unlock(&pool->mutex);
        }
        dendp_pool_work(pool);
    }
    return 0;
}

/* Wakes whoever is parked. A worker counts itself as parked before it looks at
 * `left` for the last time, and we raise `left` before we look at the count: one
 * of the two sees the other. */
static void dendp_pool_signal(dendp_pool *pool) {
    if (dendp_atomic_add(&pool->n_parked, 0)) {
        dendp_mutex_lock(&pool->mutex);
        dendp_condition_wake_all(&pool->wake);
        dendp_mutex_unlock(&pool->mutex);
    }
}
#endif

/* A part of a loop, for job systems that run loops from 0 on. */
typedef struct dendp_loop_part {
    dendp_task task;
    void *ctx;
    uint32_t first;
} dendp_loop_part;

static void dendp_loop_part_task(void *ctx, uint32_t index) {
    const dendp_loop_part *part = (const dendp_loop_part *)ctx;
    part->task(part->ctx, part->first + index);
}

/* Runs tasks [first, n_tasks) with the caller's job system, some at a time. */
static uint32_t dendp_pool_run_jobs(dendp_pool *pool, dendp_task task, void *ctx, uint32_t first,
                                    uint32_t n_tasks, dendp_slices *s) {
    while (first < n_tasks) {
        dendp_loop_part part;
        uint32_t n = s && s->deadline_ns ? dendp_min_u32(n_tasks - first, pool->n_threads) : n_tasks - first;
        part.task = task;
        part.ctx = ctx;
        part.first = first;
        pool->jobs.run(pool->jobs.user, first ? dendp_loop_part_task : task, first ? (void *)&part : ctx, n);
        first += n;
        if (s && dendp_slices_late(s)) {
            break;
        }
    }
    return first;
}

/* Runs task(ctx, first ... n_tasks-1) on all threads and waits for those that
 * have begun. With slices it ends early, when they are late, but not before a
 * task has run. Returns the first task that has not run. */
static uint32_t dendp_pool_run_from(dendp_pool *pool, dendp_task task, void *ctx, uint32_t first,
                                    uint32_t n_tasks, dendp_slices *s) {
    if (pool->jobs.run) {
        return dendp_pool_run_jobs(pool, task, ctx, first, n_tasks, s);
    }
#if DENDP_THREADS
    if (pool->n_started && n_tasks > first + 1) {
        uint32_t claimed = n_tasks - first, spins = 0;
        pool->task = task;
        pool->ctx = ctx;
        pool->n_tasks = n_tasks;
        dendp_atomic_store(&pool->done, 0);
        dendp_atomic_add(&pool->left, n_tasks - first); /* from 0 */
        dendp_pool_signal(pool);
        if (s) {
            claimed -= dendp_pool_work_until(pool, s);
        } else {
            dendp_pool_work(pool);
        }
        while (dendp_atomic_load(&pool->done) != claimed) {
            if (++spins < DENDP_SPINS) {
                dendp_pause();
            } else {
                dendp_yield(); /* a worker has lost its processor: spinning would keep it from it */
            }
        }
        return first + claimed;
    }
#endif
    while (first < n_tasks) {
        task(ctx, first++);
        if (s && dendp_slices_late(s)) {
            break;
        }
    }
    return first;
}

/* Runs task(ctx, 0 ... n_tasks-1) on all threads and waits for all of them. */
static void dendp_pool_run(dendp_pool *pool, dendp_task task, void *ctx, uint32_t n_tasks) {
    (void)dendp_pool_run_from(pool, task, ctx, 0, n_tasks, NULL);
}

/* One loop of an operation in slices. False: it is late, and the caller returns
 * so at once; the operation goes on when it is called again as it was. */
static bool dendp_pool_run_sliced(dendp_pool *pool, dendp_slices *s, dendp_task task, void *ctx,
                                  uint32_t n_tasks) {
    if (s->at++ < s->n_through) {
        return true;
    }
    s->next = dendp_pool_run_from(pool, task, ctx, s->next, n_tasks, s);
    if (s->next < n_tasks) {
        s->at = 0;
        return false;
    }
    s->n_through++;
    s->next = 0;
    return true;
}

static void dendp_pool_close(dendp_pool *pool) {
#if DENDP_THREADS
    if (pool->n_started) {
        uint32_t i;
        dendp_atomic_add(&pool->stop, 1);
        dendp_pool_signal(pool);
        for (i = 0; i < pool->n_started; i++) {
            dendp_thread_join(pool->threads[i]);
        }
        pool->n_started = 0;
        dendp_condition_destroy(&pool->wake);
        dendp_mutex_destroy(&pool->mutex);
    }
#else
    (void)pool;
#endif
}

/* Starts n_threads - 1 workers (the caller is one more), or none with a job
 * hook. THREADS when the system refuses; nothing is left running then. */
static dend_status dendp_pool_open(dendp_pool *pool, uint32_t n_threads, const dend_jobs *jobs,
                                   dend_error *err) {
    memset(pool, 0, sizeof *pool);
    pool->n_threads = DENDP_THREADS ? dendp_max_u32(1, dendp_min_u32(n_threads, DENDP_MAX_THREADS)) : 1;
    if (jobs->run) {
        pool->jobs = *jobs;
        pool->n_threads = dendp_max_u32(1, dendp_min_u32(jobs->n_workers, DENDP_MAX_THREADS));
        return DEND_OK;
    }
#if DENDP_THREADS
    if (pool->n_threads > 1) {
        if (!dendp_mutex_init(&pool->mutex)) {
            return DENDP_FAIL(err, DEND_ERR_THREADS, "mutex cannot be created", 0);
        }
        if (!dendp_condition_init(&pool->wake)) {
            dendp_mutex_destroy(&pool->mutex);
            return DENDP_FAIL(err, DEND_ERR_THREADS, "condition variable cannot be created", 0);
        }
        while (pool->n_started < pool->n_threads - 1) {
            if (!dendp_thread_start(&pool->threads[pool->n_started], dendp_pool_main, pool, DENDP_STACK)) {
                if (pool->n_started) {
                    dendp_pool_close(pool);
                } else {
                    dendp_condition_destroy(&pool->wake);
                    dendp_mutex_destroy(&pool->mutex);
                }
                return DENDP_FAIL(err, DEND_ERR_THREADS, "thread cannot be started", 0);
            }
            pool->n_started++;
        }
    }
#else
    pool->n_threads = 1;
    (void)err;
#endif
    return DEND_OK;
}
