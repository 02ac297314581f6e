/* Reading JSON. A text that is no JSON, or nothing for the caller, makes the reader bad; the functions then return 0. */
#ifndef GSV_JSON_H
#define GSV_JSON_H

#include <stddef.h>
#include <stdint.h>

struct reader {
    const char *at; /* the text ends with a NUL, at which all of these stop */
    int is_bad;
};

/* Memory that stays until gsv_forget_all(); NULL: there is none. */
void *gsv_take(size_t bytes);
char *gsv_joined(const char *first, const char *middle, const char *last);
void gsv_forget_all(void);

int gsv_bad(struct reader *r);
void gsv_skip_space(struct reader *r);
int gsv_eat(struct reader *r, char which);              /* whether a character comes next; it is passed */
int gsv_eat_word(struct reader *r, const char *word);   /* likewise */
int gsv_next(struct reader *r, int *count, char end);   /* whether an array or object has another element */
char *gsv_text(struct reader *r, size_t more, size_t *length); /* with room for `more` bytes behind it */
double gsv_number(struct reader *r);
int64_t gsv_integer(struct reader *r);
int gsv_truth(struct reader *r);
void gsv_skip(struct reader *r, int depth);
void gsv_nothing(struct reader *r); /* pass a value that says that there is nothing */

#endif
