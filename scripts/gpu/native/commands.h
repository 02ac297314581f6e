/* The commands of waiting.c, recording.c, memory.c and streams.c. */
#ifndef SHARING_COMMANDS_H
#define SHARING_COMMANDS_H

void await_flag(void);
void set_flag(void);
void resets(void);
void exits(void);

void record(void);
void beside(void);
void late(void);
void slow(void);

void reuse(void);
void pieces(void);
void graph_memory(void);
void frees(void);

void green(void);
void ordered(void);
void fault(void);

#endif
