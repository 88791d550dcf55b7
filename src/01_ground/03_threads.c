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

/* Runs task(ctx, 0 ... n_tasks-1) on all threads and waits for all of them. */
static void dendp_pool_run(dendp_pool *pool, dendp_task task, void *ctx, uint32_t n_tasks) {
    uint32_t i, spins = 0;
    (void)spins;
    if (pool->jobs.run) {
        if (n_tasks) {
            pool->jobs.run(pool->jobs.user, task, ctx, n_tasks);
        }
        return;
    }
#if DENDP_THREADS
    if (pool->n_started && n_tasks > 1) {
        pool->task = task;
        pool->ctx = ctx;
        pool->n_tasks = n_tasks;
        dendp_atomic_store(&pool->done, 0);
        dendp_atomic_add(&pool->left, n_tasks); /* from 0 */
        dendp_pool_signal(pool);
        dendp_pool_work(pool);
        while (dendp_atomic_load(&pool->done) != n_tasks) {
            if (++spins < DENDP_SPINS) {
                dendp_pause();
            } else {
                dendp_yield(); /* a worker has lost its processor: spinning would keep it from it */
            }
        }
        return;
    }
#endif
    for (i = 0; i < n_tasks; i++) {
        task(ctx, i);
    }
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
    pool->n_threads = dendp_max_u32(1, dendp_min_u32(n_threads, DENDP_MAX_THREADS));
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
