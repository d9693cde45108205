// A component that is drawn again only when one of its props is another.
import { Component, type ComponentType, createElement } from "preact";

export function still<P extends object>(Part: ComponentType<P>): ComponentType<P> {
  return class Still extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const before: object = this.props;
      return Object.entries(next).some(([name, value]) => (before as Record<string, unknown>)[name] !== value);
    }

    override render(props: P) {
      return createElement(Part, props);
    }
  };
}
