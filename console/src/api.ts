// The supervisor's HTTP interface from a page: questions, actions, and answers as they change.
import { useEffect, useState } from "preact/hooks";

export interface Failure {
  kind: string;
  what: string;
  where: string | null;
  next: string | null;
}

export class Refused extends Error {
  constructor(readonly failure: Failure) {
    super(failure.what);
  }
}

let csrf = "";

/** Whether this console may change something; one beside a job that runs by itself only shows it. */
export let acts = true;

/** Who is logged in; without a session the page is loaded again, and is then the one that logs in. */
export async function begin(): Promise<string> {
  const answer = await fetch("/console/session");
  if (!answer.ok) {
    location.reload();
    return "";
  }
  const found = (await answer.json()) as { csrf: string; user: string; acts: boolean };
  csrf = found.csrf;
  acts = found.acts;
  return found.user;
}

export async function ask<T>(path: string): Promise<T> {
  return read<T>(await fetch(path));
}

export async function act<T>(path: string, body?: unknown, method = "POST"): Promise<T> {
  return read<T>(
    await fetch(path, {
      method,
      headers: { "content-type": "application/json", "x-millstream-csrf": csrf },
      body: body === undefined ? null : JSON.stringify(body),
    }),
  );
}

async function read<T>(answer: Response): Promise<T> {
  const document = (await answer.json()) as T & { error?: Failure };
  if (!answer.ok) {
    if (answer.status === 401) location.reload();
    throw new Refused(document.error ?? { kind: "", what: `the answer was ${answer.status}`, where: null, next: null });
  }
  return document;
}

type Taken = (answer: unknown) => void;

interface Listener {
  taken: Taken;
  refused: (failure: Failure) => void;
}

const GONE: Failure = { kind: "Gone", what: "the supervisor does not answer", where: null, next: "start it: millstream up" };
const PATHS_MAX = 32;

/** The answers to some paths over one connection: browsers allow six to one server. */
function stream(paths: string[], listeners: (path: string) => Iterable<Listener>): EventSource {
  const source = new EventSource(`/console/live?${paths.map((path) => `path=${encodeURIComponent(path)}`).join("&")}`);
  const each = (event: Event, does: (listener: Listener, answer: unknown) => void) => {
    const { data, lastEventId } = event as MessageEvent<string>;
    const answer = JSON.parse(data) as unknown;
    for (const listener of listeners(paths[Number(lastEventId)] ?? "")) does(listener, answer);
  };
  source.addEventListener("answer", (event) => each(event, (listener, answer) => listener.taken(answer)));
  source.addEventListener("refused", (event) =>
    each(event, (listener, answer) => listener.refused((answer as { error: Failure }).error)),
  );
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.CLOSED) return;
    for (const path of paths) for (const listener of listeners(path)) listener.refused(GONE);
  });
  return source;
}

/** Calls `taken` with each answer to a path that goes on where the last one ended, while the page can be seen. */
export function follow<T>(path: string, taken: (answer: T) => void, refused: (failure: Failure) => void): () => void {
  const listener = { taken: taken as Taken, refused };
  let source: EventSource | null = null;
  const open = () => {
    if (!source && !document.hidden) source = stream([path], () => [listener]);
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const changed = () => (document.hidden ? close() : open()); // pages in the background have no connections
  document.addEventListener("visibilitychange", changed);
  open();
  return () => {
    document.removeEventListener("visibilitychange", changed);
    close();
  };
}

const listening = new Map<string, Set<Listener>>();
let shared: EventSource[] = [];
let reopens = 0;

/** Calls a listener with each answer to a path that differs from the last; all of a page share a connection. */
function listen(path: string, listener: Listener): () => void {
  const of = listening.get(path) ?? new Set();
  listening.set(path, of.add(listener));
  reopen();
  return () => {
    of.delete(listener);
    if (of.size === 0) listening.delete(path);
    reopen();
  };
}

/** Soon: a page that opens asks for several paths, one after the other. */
function reopen(): void {
  clearTimeout(reopens);
  reopens = window.setTimeout(() => {
    for (const source of shared) source.close();
    const paths = document.hidden ? [] : [...listening.keys()];
    shared = [];
    for (let place = 0; place < paths.length; place += PATHS_MAX) {
      shared.push(stream(paths.slice(place, place + PATHS_MAX), (path) => [...(listening.get(path) ?? [])]));
    }
  }, 10);
}

document.addEventListener("visibilitychange", reopen);

export interface Live<T> {
  answer: T | null;
  failure: Failure | null;
}

/** The newest answer to a path. */
export function useLive<T>(path: string | null): Live<T> {
  const [found, change] = useState<Live<T>>({ answer: null, failure: null });
  useEffect(() => {
    change({ answer: null, failure: null });
    if (path === null) return undefined;
    return listen(path, {
      taken: (answer) => change({ answer: answer as T, failure: null }),
      refused: (failure) => change((before) => ({ ...before, failure })),
    });
  }, [path]);
  return found;
}

/** The answer to a path, asked once. */
export function useAnswer<T>(path: string | null): Live<T> {
  const [found, change] = useState<Live<T>>({ answer: null, failure: null });
  useEffect(() => {
    let wanted = true;
    change({ answer: null, failure: null });
    if (path === null) return undefined;
    ask<T>(path).then(
      (answer) => wanted && change({ answer, failure: null }),
      (error: unknown) => wanted && change({ answer: null, failure: failureOf(error) }),
    );
    return () => {
      wanted = false;
    };
  }, [path]);
  return found;
}

export function failureOf(error: unknown): Failure {
  return error instanceof Refused ? error.failure : { kind: "", what: String(error), where: null, next: null };
}
