// What stands at the top of both pages.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./icons";
import { chooseTheme, readTheme } from "./kept";
import type { Server } from "./server";

export function Header(props: {
  server: Server;
  apiKey: string;
  setKey: (key: string) => void;
  link: { href: string; text: string };
  before?: ComponentChildren;
  after?: ComponentChildren;
}) {
  const { server } = props;
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (server.needsKey) field.current?.focus();
  }, [server.needsKey]);
  return (
    <header>
      {props.before}
      <h1>
        <img src="assets/icon.svg" alt="" width="22" height="22" /> <span>Harmonium</span>
      </h1>
      <p class={`state ${server.needsKey ? "gone" : server.state}`} role="status" title={server.message}>
        {server.state === "ready" ? server.message : `${server.model ? `${server.model.id}: ` : ""}${server.message}`}
      </p>
      {(server.needsKey || props.apiKey) && (
        <label class="key">
          API key
          <input
            ref={field}
            type="password"
            autocomplete="off"
            placeholder="kept in this tab only"
            value={props.apiKey}
            onChange={(event) => props.setKey(event.currentTarget.value.trim())}
          />
        </label>
      )}
      <span class="gap" />
      <a href={props.link.href}>{props.link.text}</a>
      <label class="theme" title="Theme">
        <Icon name="theme" />
        <select aria-label="Theme" value={readTheme()} onChange={(event) => chooseTheme(event.currentTarget.value)}>
          <option value="">System</option>
          <option value="light">Light</option>
          <option value="dark">Dark</option>
        </select>
      </label>
      {props.after}
    </header>
  );
}
