"""Why this system is unsupported, and how to fix it."""

import os

NEEDS = "local runs need Linux 5.4 or newer (pidfds, /proc, /dev/shm)"


def has_pidfds() -> bool:
    """Whether this kernel, and the sandbox around this process, give pidfds: asked for, as vendors backport them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def platform_lack(system: str, release: str, pidfds: bool) -> str:
    """One sentence with the mend, or empty: `system` is sys.platform's, `release` the kernel's (`platform.release()`),
    `pidfds` whether it has them (`has_pidfds`).

    WSL 1 names its kernel `...-Microsoft`, WSL 2 `...-microsoft-standard-WSL2`, which is a real Linux.
    """
    if system == "darwin":
        return f"macOS: {NEEDS}; run in a Linux container or machine, or submit with --target argo"
    if system in ("win32", "cygwin"):
        return f"Windows: {NEEDS}; use WSL 2 (wsl --install), or submit with --target argo"
    if release.endswith("-Microsoft"):
        return f"WSL 1: {NEEDS}; convert the distribution: wsl --set-version NAME 2"
    if system == "linux" and not pidfds:
        return f"Linux {release} without pidfds: {NEEDS}; use a newer kernel, or submit with --target argo"
    return "" if system == "linux" else f"{system}: {NEEDS}"
