"""What this operating system lacks for runs on it."""

NEEDS = "local runs need Linux 5.4 or newer (pidfds, /proc, /dev/shm)"


def platform_lack(system: str, release: str) -> str:
    """One sentence with the mend, or empty: `system` is sys.platform's, `release` the kernel's (`platform.release()`).

    WSL 1 names its kernel `...-Microsoft`, WSL 2 `...-microsoft-standard-WSL2`, which is a real Linux.
    """
    if system == "darwin":
        return f"macOS: {NEEDS}; run in a Linux container or machine, or submit with --target argo"
    if system in ("win32", "cygwin"):
        return f"Windows: {NEEDS}; use WSL 2 (wsl --install), or submit with --target argo"
    if release.endswith("-Microsoft"):
        return f"WSL 1: {NEEDS}; convert the distribution: wsl --set-version NAME 2"
    return "" if system == "linux" else f"{system}: {NEEDS}"
