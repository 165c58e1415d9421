// One line above the message field; of several things to say it says the most urgent.

const URGENCY = ["edit", "health", "cleared", "store"];

export class Notices {
  #frame;
  #words;
  #detail;
  #button;
  #notices = new Map();

  constructor(frame, words, detail, button) {
    this.#frame = frame;
    this.#words = words;
    this.#detail = detail;
    this.#button = button;
    button.addEventListener("click", () => this.act(this.#current()));
  }

  /**
   * Says `words` about `topic`, or with null nothing any more. `detail` changes
   * too often to be read out; `caption` is that of a button, `action` what it does.
   */
  set(topic, words, { detail = "", caption = "", action = null } = {}) {
    if (words === null) this.#notices.delete(topic);
    else this.#notices.set(topic, { words, detail, caption, action });
    const notice = this.#notices.get(this.#current());
    this.#frame.classList.toggle("shown", notice !== undefined);
    const said = notice?.words ?? "";
    if (this.#words.textContent !== said) this.#words.textContent = said;
    this.#detail.textContent = notice?.detail ?? "";
    this.#button.hidden = !notice?.caption;
    this.#button.textContent = notice?.caption ?? "";
  }

  /** Does what the button of `topic` does. */
  act(topic) {
    this.#notices.get(topic)?.action?.();
  }

  #current() {
    return URGENCY.find((topic) => this.#notices.has(topic));
  }
}
