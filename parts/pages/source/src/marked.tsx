/** What stands between backticks as code. */
export const marked = (text: string) =>
  text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part));
