// Small drawings for what buttons do.

const PATHS = {
  attach: "M12 5v14M5 12h14",
  chats: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15V4h10",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20l1-5L16 4l4 4L9 19zM14 6l4 4",
  raw: "M8 7l-5 5 5 5M16 7l5 5-5 5",
  retry: "M19.5 9A8 8 0 1 0 20 13M20 4v5h-5",
  send: "M12 19V5M6 11l6-6 6 6",
  settings: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.5v5M9 13.5v5",
  stop: "M7 7h10v10H7z",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  tokens: "M4 5h9v5H4zM16 5h4v5h-4zM4 14h4v5H4zM11 14h9v5h-9z",
};

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
