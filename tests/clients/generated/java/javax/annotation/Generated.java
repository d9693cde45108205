package javax.annotation;

/** What the generator marks its classes with; Java has it no more. */
public @interface Generated {
    String value();
    String date();
    String comments();
}
