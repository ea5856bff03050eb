// Exchanges the code in the address, or the token, for a session. The code leaves the address before anything else.
import "./login.css";

const says = document.querySelector<HTMLElement>("#says")!;
const form = document.querySelector<HTMLFormElement>("#form")!;
const token = document.querySelector<HTMLInputElement>("#token")!;

async function enter(given: { code?: string; token?: string }): Promise<void> {
  const answer = await fetch("/console/login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(given),
  });
  if (answer.ok) {
    location.reload();
    return;
  }
  const { error } = (await answer.json()) as { error: { what: string; next: string } };
  ask(given.token ? "This is not the token of this supervisor." : `${error.what}; ${error.next}`);
}

function ask(why: string): void {
  says.textContent = why;
  form.hidden = false;
  token.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void enter({ token: token.value });
});

const [, code, page] = /^#code=([^/]+)(.*)$/.exec(location.hash) ?? [];
if (code) {
  history.replaceState(null, "", page ? `${location.pathname}#${page}` : location.pathname);
  void enter({ code });
} else {
  ask("Log in to see jobs, topics and tables.");
}
