"""`millstream accounts`: who may use the supervisor of a log, besides its owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from millstream.cli.output import show_done, show_table
from millstream.cli.session import Session, subcommands

if TYPE_CHECKING:
    from millstream.supervision.accounts import Accounts

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the account.")]


def register(app: typer.Typer) -> None:
    subcommands(app, "accounts", "Accounts for a supervisor that several people share.", add, list_accounts, remove)


def add(
    session: Session,
    name: Name,
    role: Annotated[Literal["viewer", "operator"], typer.Option(help="A viewer cannot change anything.")] = "viewer",
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the password from a file; default: ask for it.")
    ] = None,
) -> None:
    """Add an account. Needs: pip install 'millstream[accounts]'

    \b
    Example:
      millstream accounts add ann --role operator
    """
    from millstream.log.storage.disk import storage_errors
    from millstream.supervision.accounts import Role

    if password_file is not None:
        with storage_errors(password_file):
            password = password_file.read_text().strip()
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    made = _accounts(session).add(name, password, Role(role))
    show_done(session, f"added '{name}', {role}", document={"name": made.name, "role": made.role.value})


def list_accounts(session: Session) -> None:
    """List the accounts and their roles."""
    found = [(each.name, each.role.value) for each in _accounts(session).known()]
    document = [{"name": name, "role": role} for name, role in found]
    show_table(session, ["account", "role"], found, document=document, empty="no accounts: only the token is valid")


def remove(session: Session, name: Name) -> None:
    """Remove an account. It is refused from now on."""
    _accounts(session).remove(name)
    show_done(session, f"removed '{name}'", document={"removed": name})


def _accounts(session: Session) -> Accounts:
    from millstream.log import chosen_address
    from millstream.log.storage.disk import storage_errors
    from millstream.private_files import make_folders
    from millstream.supervision.accounts import Accounts
    from millstream.supervision.home import Home

    folder = Home.of(chosen_address(session.address)).folder
    with storage_errors(folder):
        make_folders(folder)
    return Accounts(folder)
