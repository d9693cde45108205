"""Run a program as a shell would: in a process group of its own, which holds the terminal.

    foreground.py PROGRAM [ARGUMENT ...]

`make` dies of a Ctrl-C, even when what it runs ends well because of it. Under this program the
terminal's keys reach PROGRAM alone, and make sees its exit code. Ctrl-Z stops make as well, so that
the shell takes the terminal back, and `fg` and `bg` go on with both.
"""

import os
import signal
import sys
from contextlib import suppress

# Typed keys reach us only after `fg` on what ran in the background: no shell tells of that.
KEYS = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP}
FORWARDED = {signal.SIGTERM, signal.SIGHUP, *KEYS}
# Blocked and taken one by one: none is lost between a look for signals and a wait for the child.
AWAITED = {signal.SIGCHLD, signal.SIGCONT, *FORWARDED}


def spawn(command: list[str]) -> int:
    """Start the command as leader of a group, no signal blocked, and return the id of both."""
    child = os.fork()
    if child:
        with suppress(PermissionError):  # it has done so itself and runs the command already
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


class Terminal:
    """The terminal we were started in, if any: it belongs to one process group at a time."""

    def __init__(self) -> None:
        try:
            self._fd: int | None = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._fd = None

    def hand(self, giver: int, taker: int) -> None:
        """Give the terminal from one group to another; nothing if the giver does not have it."""
        if self._fd is None:
            return
        try:
            if os.tcgetpgrp(self._fd) == giver:
                os.tcsetpgrp(self._fd, taker)
        except OSError:  # the terminal was closed, or the group has ended
            return


def wait(child: int, terminal: Terminal) -> int:
    """Wait for the program's end through stops and continues; return its wait status."""
    ours = os.getpgrp()
    while True:
        number = signal.sigwait(AWAITED)
        if number in FORWARDED:
            os.killpg(child, number)
            continue
        if number == signal.SIGCHLD:
            changed, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if not changed:
                continue
            terminal.hand(child, ours)
            if not os.WIFSTOPPED(status):
                return status
            stop_all(ours)
        terminal.hand(ours, child)
        os.killpg(child, signal.SIGCONT)


def stop_all(group: int) -> None:
    """Stop our own group, make among it; return when the shell continues it."""
    # A Ctrl-Z that reaches make as well gives the prompt back before we are here, and a quick `bg`
    # may have continued us already.
    if signal.SIGCONT not in signal.sigpending():
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(group, signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})  # here we stop
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
    if signal.SIGCONT in signal.sigpending():
        signal.sigwait({signal.SIGCONT})


def main(command: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    terminal = Terminal()
    child = spawn(command)
    for number in AWAITED:  # some systems drop a signal that is ignored even while it is blocked
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # who gives the terminal back does not have it
    terminal.hand(os.getpgrp(), child)
    code = os.waitstatus_to_exitcode(wait(child, terminal))
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
