"""Program: run a command as a user. Run by a gnode that is root, never imported by it for that.

Arguments: user, uid, gid, the command. The rights go for good before anything of the user's is
touched.
"""

import os
import sys


def become(user: str, uid: int, gid: int) -> None:
    """Become the user for good: groups, then gid, then uid; checked, since a miss would be root."""
    if uid == 0 or gid == 0:
        os._exit(254)
    os.setgroups(os.getgrouplist(user, gid))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        os._exit(254)


def main() -> None:
    """Do as the arguments say."""
    user, uid, gid, *command = sys.argv[1:]
    become(user, int(uid), int(gid))
    os.execv(command[0], command)  # noqa: S606 - as the user whose it is


if __name__ == "__main__":
    main()
