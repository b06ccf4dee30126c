// The server: the token from the address's fragment, streams of events, and deeds.

const KEY = "everstep-token";

export function takeToken() {
  const fragment = location.hash.slice(1);
  if (fragment && !fragment.startsWith("/")) {
    localStorage.setItem(KEY, fragment);
    history.replaceState(null, "", "#/");
  }
}

const headers = () => ({ Authorization: `Bearer ${localStorage.getItem(KEY) || ""}` });

export async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || `status ${answer.status}`);
  return data;
}

// Calls on(kind, data) for each event, and onState("live" | "lost" | text of a refusal). Reconnects until closed; while
// the page is hidden nothing is connected.
export class Stream {
  constructor(path, on, onState) {
    Object.assign(this, { path, on, onState, closed: false });
    this.onVisible = () => (document.hidden ? this.abort() : this.open());
    document.addEventListener("visibilitychange", this.onVisible);
    this.open();
  }
  close() {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onVisible);
    this.abort();
  }
  abort() {
    clearTimeout(this.timer);
    this.controller?.abort();
    this.controller = null;
  }
  async open() {
    if (this.closed || this.controller || document.hidden) return;
    const controller = (this.controller = new AbortController());
    let state = "lost";
    try {
      const answer = await fetch(this.path, { headers: headers(), signal: controller.signal });
      if (!answer.ok) state = (await answer.json()).error || `status ${answer.status}`;
      else {
        this.onState("live");
        await this.read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
      }
    } catch (error) {
      if (controller.signal.aborted) return;
      console.warn(String(error));
    }
    if (controller.signal.aborted) return;
    this.controller = null;
    this.onState(state);
    this.timer = setTimeout(() => this.open(), 1500);
  }
  async read(reader) {
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const lines = event.split("\n");
        this.on(lines[0].slice(7), JSON.parse(lines[1].slice(6)));
      }
    }
  }
}
