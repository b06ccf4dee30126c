package osspecific

// Signals and the end of a step's command on Linux. This file of the package is not in the module's archive; what it
// has to offer follows from the package's other files and from who calls it.

import (
	"os"
	"syscall"

	"github.com/argoproj/argo-workflows/v4/util/errors"
)

// Term asks a command to end.
var Term = syscall.SIGTERM

// CanIgnoreSignal tells what no command has to hear of: news of the caller's own children and of Go's scheduler.
func CanIgnoreSignal(s os.Signal) bool {
	switch s {
	case syscall.SIGCHLD, syscall.SIGURG:
		return true
	}
	return false
}

// Kill sends the signal to the whole group of the process, so that what it has started hears it too.
func Kill(pid int, s syscall.Signal) error {
	group, err := syscall.Getpgid(pid)
	if err != nil {
		return syscall.Kill(pid, s)
	}
	return syscall.Kill(-group, s)
}

// Setpgid makes the command lead a group of its own.
func Setpgid(a *syscall.SysProcAttr) {
	a.Setpgid = true
}

// Wait returns when the command has ended, with its exit code; meanwhile it buries what the command has orphaned, as
// the first process of a container must.
func Wait(process *os.Process) error {
	pid := process.Pid
	if err := process.Release(); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case ended != pid:
		case status.Exited():
			return errors.NewExitErr(status.ExitStatus())
		case status.Signaled():
			return errors.NewExitErr(128 + int(status.Signal()))
		}
	}
}
