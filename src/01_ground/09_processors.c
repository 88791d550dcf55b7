/* ==========================================================================
 * >>01.09 PROCESSORS: how many threads are worth starting
 * ==========================================================================
 * Threads of one core share its arithmetic units, which one of our threads
 * fills on its own: a second one gains nothing and costs cache. So the number
 * of threads is that of the cores that the process may use: of its affinity
 * mask, and cut to the time that its cgroup grants it. Linux says which
 * processors are siblings in files of text; the functions that read the text
 * are apart from those that open the files.
 * ======================================================================== */

#define DENDP_MAX_CPUS 1024u /* as many as a cpu_set_t holds */

typedef struct dendp_cpu_set {
    uint64_t bits[DENDP_MAX_CPUS / 64];
} dendp_cpu_set;

/* The processors that this process may use. */
typedef struct dendp_cpus {
    uint32_t n_processors; /* of the affinity mask, siblings included */
    uint32_t n_cores;      /* that these belong to; n_processors where nothing is known of siblings */
    uint32_t quota;        /* whole processors' worth of time, rounded up; 0 = no limit */
} dendp_cpus;

static bool dendp_cpu_set_has(const dendp_cpu_set *set, uint32_t cpu) {
    return cpu < DENDP_MAX_CPUS && (set->bits[cpu / 64] >> cpu % 64 & 1u) != 0;
}

/* A number in decimal, saturated at UINT32_MAX; false when there is no digit. */
static bool dendp_text_number(const char **text, uint32_t *out) {
    const char *s = *text;
    uint64_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        v = v * 10 + (uint64_t)(*s - '0');
        v = v < UINT32_MAX ? v : UINT32_MAX;
    }
    *out = (uint32_t)v;
    if (s == *text) {
        return false;
    }
    *text = s;
    return true;
}

/* Reads a list of processors, "0,4" or "0-3,8-11\n". Numbers that a set does
 * not hold are left out. False, and an empty set, for everything else. */
static DENDP_UNUSED bool dendp_cpu_list(const char *text, dendp_cpu_set *out) {
    uint32_t first, last;
    memset(out, 0, sizeof *out);
    for (;;) {
        if (!dendp_text_number(&text, &first)) {
            break;
        }
        last = first;
        if (*text == '-') {
            text++;
            if (!dendp_text_number(&text, &last) || last < first) {
                break;
            }
        }
        for (; first <= last && first < DENDP_MAX_CPUS; first++) {
            out->bits[first / 64] |= (uint64_t)1 << first % 64;
        }
        if (*text == ',') {
            text++;
            continue;
        }
        if (*text == 0 || (*text == '\n' && text[1] == 0)) {
            return true;
        }
        break;
    }
    memset(out, 0, sizeof *out);
    return false;
}

/* Gives the list of the siblings of a processor, itself included, 0-terminated; false when there is none. */
typedef bool (*dendp_siblings_fn)(void *user, uint32_t cpu, char *text, size_t cap);

/* Cores that the processors of a set belong to: each group of siblings counts
 * once, a processor of which nothing is known counts on its own. */
static DENDP_UNUSED uint32_t dendp_core_count(const dendp_cpu_set *set, dendp_siblings_fn siblings_of,
                                              void *user) {
    dendp_cpu_set left = *set, siblings;
    char text[512];
    uint32_t cpu, i, n = 0;
    for (cpu = 0; cpu < DENDP_MAX_CPUS; cpu++) {
        if (!dendp_cpu_set_has(&left, cpu)) {
            continue;
        }
        n++;
        if (siblings_of(user, cpu, text, sizeof text) && dendp_cpu_list(text, &siblings) &&
            dendp_cpu_set_has(&siblings, cpu)) {
            for (i = 0; i < DENDP_MAX_CPUS / 64; i++) {
                left.bits[i] &= ~siblings.bits[i];
            }
        }
    }
    return n;
}

/* Processors' worth of time, rounded up, of "quota period" in any unit; 0 for
 * "max period", "-1 period" and everything else that sets no limit. */
static DENDP_UNUSED uint32_t dendp_quota_count(const char *text) {
    uint32_t quota, period;
    if (!dendp_text_number(&text, &quota)) {
        return 0;
    }
    while (*text == ' ' || *text == '\n') {
        text++;
    }
    if (!dendp_text_number(&text, &period) || period == 0 || quota == 0) {
        return 0;
    }
    return quota / period + (quota % period != 0 ? 1u : 0u);
}

/* The path of this process in a hierarchy, of the text of /proc/self/cgroup:
 * lines "number:controllers:path". controller "" is that of version 2, whose
 * line has none. False when no line is about it, or its path does not fit. */
static DENDP_UNUSED bool dendp_cgroup_path(const char *text, const char *controller, char *out, size_t cap) {
    size_t want = strlen(controller), n;
    while (*text) {
        const char *end = text + strcspn(text, "\n"), *names = text + strcspn(text, ":\n"), *path;
        bool found = false;
        if (*names == ':') {
            names++;
            path = names + strcspn(names, ":\n");
            found = want == 0 && path == names;
            while (want != 0 && !found && names < path) {
                n = strcspn(names, ",:\n");
                found = n == want && memcmp(names, controller, n) == 0;
                names += n + (names[n] == ',' ? 1u : 0u);
            }
            if (found && *path == ':' && path[1] == '/') {
                n = (size_t)(end - (path + 1));
                if (n >= cap) {
                    return false;
                }
                memcpy(out, path + 1, n);
                out[n] = 0;
                return true;
            }
        }
        text = end + (*end == '\n' ? 1 : 0);
    }
    return false;
}

#if defined(__linux__)
/* The beginning of a small file, 0-terminated; false when it cannot be read. Allocates nothing. */
static bool dendp_read_text(const char *path, char *out, size_t cap) {
    int fd = open(path, O_RDONLY);
    size_t n = 0;
    ssize_t got = -1;
    if (fd >= 0) {
        while (n < cap - 1 && (got = read(fd, out + n, cap - 1 - n)) > 0) {
            n += (size_t)got;
        }
        close(fd);
    }
    out[n] = 0;
    return fd >= 0 && (n > 0 || got == 0);
}

static DENDP_UNUSED bool dendp_siblings_of(void *user, uint32_t cpu, char *text, size_t cap) {
    char path[96];
    (void)user;
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
                   (unsigned)cpu);
    return dendp_read_text(path, text, cap);
}

/* The least quota of a group and of those that it lies in; 0 = none. Where the
 * path is that of the host and we see only our own part, the walk ends there. */
static uint32_t dendp_cgroup_quota(const char *root, char *group, bool version2) {
    uint32_t least = 0, quota;
    size_t n = strlen(group);
    for (;;) {
        char path[640], text[128];
        size_t used;
        group[n] = 0;
        (void)snprintf(path, sizeof path, "%s%s/%s", root, group, version2 ? "cpu.max" : "cpu.cfs_quota_us");
        if (dendp_read_text(path, text, sizeof text)) {
            if (!version2) {
                used = strlen(text);
                (void)snprintf(path, sizeof path, "%s%s/cpu.cfs_period_us", root, group);
                if (!dendp_read_text(path, text + used, sizeof text - used)) {
                    text[0] = 0;
                }
            }
            quota = dendp_quota_count(text);
            least = quota && (!least || quota < least) ? quota : least;
        }
        if (n == 0) {
            return least;
        }
        while (n > 0 && group[--n] != '/') {
        }
    }
}
#endif

static void dendp_cpus_find(dendp_cpus *out) {
    long n = 1;
#if DENDP_POSIX && defined(_SC_NPROCESSORS_ONLN)
    n = sysconf(_SC_NPROCESSORS_ONLN);
#elif DENDP_WINDOWS
    SYSTEM_INFO system_info;
    GetSystemInfo(&system_info);
    n = (long)system_info.dwNumberOfProcessors;
#endif
    memset(out, 0, sizeof *out);
    out->n_processors = n < 1 ? 1u : n > (long)DENDP_MAX_CPUS ? DENDP_MAX_CPUS : (uint32_t)n;
    out->n_cores = out->n_processors;
#if DENDP_WINDOWS
    { /* the process's group of processors, 64 at most; a core counts when one of its processors may be used */
        SYSTEM_LOGICAL_PROCESSOR_INFORMATION cores[256];
        DWORD bytes = (DWORD)sizeof cores;
        DWORD_PTR mine = 0, all = 0;
        if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine) {
            DWORD_PTR rest;
            out->n_processors = 0;
            for (rest = mine; rest; rest &= rest - 1) {
                out->n_processors++;
            }
            out->n_cores = out->n_processors;
            if (GetLogicalProcessorInformation(cores, &bytes)) {
                uint32_t i, n_cores = 0;
                for (i = 0; i < bytes / sizeof cores[0]; i++) {
                    n_cores += cores[i].Relationship == RelationProcessorCore &&
                               (cores[i].ProcessorMask & mine) != 0;
                }
                out->n_cores = n_cores ? n_cores : out->n_processors;
            }
        }
    }
#endif
#if defined(__linux__) && defined(_GNU_SOURCE) && defined(CPU_COUNT)
    {
        cpu_set_t mask;
        CPU_ZERO(&mask);
        if (sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_COUNT(&mask) > 0) {
            dendp_cpu_set set;
            uint32_t cpu;
            memset(&set, 0, sizeof set);
            for (cpu = 0; cpu < DENDP_MAX_CPUS && cpu < CPU_SETSIZE; cpu++) {
                if (CPU_ISSET(cpu, &mask)) {
                    set.bits[cpu / 64] |= (uint64_t)1 << cpu % 64;
                }
            }
            out->n_processors = (uint32_t)CPU_COUNT(&mask);
            out->n_cores = dendp_core_count(&set, dendp_siblings_of, NULL);
        }
    }
#endif
#if defined(__linux__)
    {
        char text[4096], group[512];
        uint32_t quota;
        if (!dendp_read_text("/proc/self/cgroup", text, sizeof text)) {
            text[0] = 0;
        }
        group[0] = 0;
        (void)dendp_cgroup_path(text, "", group, sizeof group);
        out->quota = dendp_cgroup_quota("/sys/fs/cgroup", group, true);
        group[0] = 0;
        (void)dendp_cgroup_path(text, "cpu", group, sizeof group);
        quota = dendp_cgroup_quota("/sys/fs/cgroup/cpu", group, false);
        out->quota = quota && (!out->quota || quota < out->quota) ? quota : out->quota;
    }
#endif
}

/* Cores that this process may use, at least 1: those of the affinity mask, cut
 * by the quota of its group where one is set.
 * Cost: on Linux a file a core, about 10 us each. */
static uint32_t dendp_cpu_count(void) {
    dendp_cpus cpus;
    uint32_t n;
    dendp_cpus_find(&cpus);
    n = cpus.quota && cpus.quota < cpus.n_cores ? cpus.quota : cpus.n_cores;
    return n < 1 ? 1u : n;
}
